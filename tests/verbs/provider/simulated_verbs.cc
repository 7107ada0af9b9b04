#include "tests/verbs/provider/simulated_verbs.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>

#include "tests/verbs/provider/simulated_nic.h"
#include "tests/verbs/provider/simulated_refusals.h"

namespace annulus {
namespace {

constexpr int kDescriptorFlags = EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE;

SimulatedNic& Device() { return SimulatedNic::Get(); }

// The one entry of the list, which is otherwise unused.
ibv_device* TheDevice() {
  static ibv_device device{};
  return &device;
}

template <class Object>
Object* Count(Object* object) {
  ++Device().counts.objects;
  return object;
}

template <class Object, class Base>
void Delete(Base* object) {
  --Device().counts.objects;
  delete static_cast<Object*>(object);
}

// Whether this call is refused, with errno.
bool Refuses(SimulatedCall call) {
  const int error = SimulatedRefusals::Note(call);
  if (error != 0) errno = error;
  return error != 0;
}

int Busy() {
  ++Device().counts.busy;
  return EBUSY;
}

ibv_device** GetDeviceList(int* count) {
  const std::lock_guard lock(Device().mutex());
  *count = Device().machine.has_device ? 1 : 0;
  auto** const list = new ibv_device* [2] {};
  if (*count > 0) list[0] = TheDevice();
  return list;
}

void FreeDeviceList(ibv_device** list) { delete[] list; }

const char* GetDeviceName(ibv_device*) { return "sim0"; }

int PollCq(ibv_cq* queue, int count, ibv_wc* completions) {
  return Device().Poll(static_cast<NicQueue*>(queue), count, completions);
}

int RequestNotify(ibv_cq* queue, int) {
  const std::lock_guard lock(Device().mutex());
  static_cast<NicQueue*>(queue)->armed = true;
  return 0;
}

int PostSend(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
  return Device().PostSend(static_cast<NicPair*>(pair), request, bad);
}

int PostReceive(ibv_qp* pair, ibv_recv_wr* request, ibv_recv_wr** bad) {
  // Only the pair's own thread changes its state so early.
  if (pair->state == IBV_QPS_INIT && Refuses(SimulatedCall::kPostReceive)) {
    *bad = request;
    return errno;
  }
  return Device().PostReceive(static_cast<NicPair*>(pair), request, bad);
}

ibv_context* OpenDevice(ibv_device* device) {
  if (Refuses(SimulatedCall::kOpenDevice)) return nullptr;
  const std::lock_guard lock(Device().mutex());
  auto* const context = Count(new NicContext{});
  context->device = device;
  context->async_fd = eventfd(0, kDescriptorFlags);
  context->cmd_fd = -1;
  context->ops.poll_cq = PollCq;
  context->ops.req_notify_cq = RequestNotify;
  context->ops.post_send = PostSend;
  context->ops.post_recv = PostReceive;
  Device().contexts.push_back(context);
  return context;
}

int CloseDevice(ibv_context* context) {
  const std::lock_guard lock(Device().mutex());
  std::erase(Device().contexts, static_cast<NicContext*>(context));
  close(context->async_fd);
  Delete<NicContext>(context);
  return 0;
}

int QueryDevice(ibv_context*, ibv_device_attr* attributes) {
  if (Refuses(SimulatedCall::kQueryDevice)) return errno;
  const std::lock_guard lock(Device().mutex());
  *attributes = {};
  attributes->phys_port_cnt = 1;
  attributes->max_cqe = Device().machine.most_completions;
  return 0;
}

int QueryPort(ibv_context*, uint8_t, _compat_ibv_port_attr* compatible) {
  if (Refuses(SimulatedCall::kQueryPort)) return errno;
  const std::lock_guard lock(Device().mutex());
  auto* const attributes = reinterpret_cast<ibv_port_attr*>(compatible);
  attributes->state = Device().machine.port_state;
  attributes->active_mtu = IBV_MTU_4096;
  attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

// One address that must not be used, one of IPv6, and the one of IPv4 behind a gap.
ssize_t QueryGidTable(ibv_context*, ibv_gid_entry* entries, size_t most, uint32_t, size_t) {
  if (Refuses(SimulatedCall::kQueryGids)) return -errno;
  const std::lock_guard lock(Device().mutex());
  if (Device().machine.gid_error != 0) return -Device().machine.gid_error;
  ibv_gid link_local{};
  link_local.raw[0] = 0xfe;
  link_local.raw[1] = 0x80;
  ibv_gid mapped{};
  mapped.raw[10] = mapped.raw[11] = 0xff;
  mapped.raw[12] = 127;
  mapped.raw[15] = 1;
  const std::array<ibv_gid_entry, 3> table = {
      ibv_gid_entry{mapped, 0, 1, IBV_GID_TYPE_ROCE_V1, 1}, ibv_gid_entry{link_local, 1, 1, IBV_GID_TYPE_ROCE_V2, 1},
      ibv_gid_entry{mapped, Device().machine.gid_index, 1, IBV_GID_TYPE_ROCE_V2, 1}};
  const size_t count = std::min<size_t>(most, Device().machine.has_roce_v2 ? table.size() : 1);
  std::copy_n(table.begin(), count, entries);
  return static_cast<ssize_t>(count);
}

int QueryPkey(ibv_context*, uint8_t, int index, __be16* pkey) {
  if (Refuses(SimulatedCall::kQueryPkey)) return -1;
  const std::lock_guard lock(Device().mutex());
  *pkey = Device().machine.pkey;
  return index == 0 ? 0 : -1;
}

int GetAsyncEvent(ibv_context* context, ibv_async_event* event) {
  const std::lock_guard lock(Device().mutex());
  eventfd_t one;
  if (eventfd_read(context->async_fd, &one) != 0) return -1;
  auto& news = static_cast<NicContext*>(context)->news;
  *event = news.front();
  news.pop_front();
  return 0;
}

void AckAsyncEvent(ibv_async_event*) {}

ibv_pd* AllocDomain(ibv_context* context) {
  if (Refuses(SimulatedCall::kDomain)) return nullptr;
  const std::lock_guard lock(Device().mutex());
  auto* const domain = Count(new ibv_pd{});
  domain->context = context;
  return domain;
}

int DeallocDomain(ibv_pd* domain) {
  const std::lock_guard lock(Device().mutex());
  bool used = false;
  for (const auto& [number, pair] : Device().pairs) used |= pair->pd == domain;
  for (const auto& [key, region] : Device().regions) used |= region->pd == domain;
  if (used) return Busy();
  Delete<ibv_pd>(domain);
  return 0;
}

ibv_mr* RegisterMemory(ibv_pd* domain, void* memory, size_t bytes, int access) {
  if (Refuses(SimulatedCall::kRegister)) return nullptr;
  const std::lock_guard lock(Device().mutex());
  SimulatedNic& device = Device();
  if (device.registered_bytes + bytes > device.machine.most_registered_bytes) {
    errno = ENOMEM;
    return nullptr;
  }
  device.registered_bytes += bytes;
  auto* const region = Count(new NicRegion{});
  region->context = domain->context;
  region->pd = domain;
  region->addr = memory;
  region->length = bytes;
  region->lkey = region->rkey = device.next_number++;
  region->access = access;
  device.regions[region->lkey] = region;
  return region;
}

int DeregisterMemory(ibv_mr* region) {
  const std::lock_guard lock(Device().mutex());
  Device().regions.erase(region->lkey);
  Device().registered_bytes -= region->length;
  Delete<NicRegion>(region);
  return 0;
}

ibv_comp_channel* CreateChannel(ibv_context* context) {
  if (Refuses(SimulatedCall::kChannel)) return nullptr;
  const std::lock_guard lock(Device().mutex());
  auto* const channel = Count(new NicChannel{});
  channel->context = context;
  channel->fd = eventfd(0, kDescriptorFlags);
  return channel;
}

int DestroyChannel(ibv_comp_channel* channel) {
  const std::lock_guard lock(Device().mutex());
  close(channel->fd);
  Delete<NicChannel>(channel);
  return 0;
}

ibv_cq* CreateQueue(ibv_context* context, int completions, void*, ibv_comp_channel* channel, int) {
  if (Refuses(SimulatedCall::kQueue)) return nullptr;
  const std::lock_guard lock(Device().mutex());
  auto* const queue = Count(new NicQueue{});
  queue->context = context;
  queue->channel = channel;
  queue->cqe = completions;
  return queue;
}

int DestroyQueue(ibv_cq* queue) {
  const std::lock_guard lock(Device().mutex());
  bool used = static_cast<NicQueue*>(queue)->unacknowledged != 0;
  for (const auto& [number, pair] : Device().pairs) used |= pair->send_cq == queue || pair->recv_cq == queue;
  if (used) return Busy();
  Delete<NicQueue>(queue);
  return 0;
}

int GetQueueEvent(ibv_comp_channel* channel, ibv_cq** queue, void** context) {
  const std::lock_guard lock(Device().mutex());
  eventfd_t one;
  if (eventfd_read(channel->fd, &one) != 0) return -1;
  auto& events = static_cast<NicChannel*>(channel)->events;
  *queue = events.front();
  ++static_cast<NicQueue*>(*queue)->unacknowledged;
  *context = nullptr;
  events.pop_front();
  return 0;
}

void AckQueueEvents(ibv_cq* queue, unsigned events) {
  const std::lock_guard lock(Device().mutex());
  static_cast<NicQueue*>(queue)->unacknowledged -= events;
}

ibv_qp* CreatePair(ibv_pd* domain, ibv_qp_init_attr* wanted) {
  if (Refuses(SimulatedCall::kPair)) return nullptr;
  const std::lock_guard lock(Device().mutex());
  SimulatedNic& device = Device();
  if (wanted->cap.max_inline_data > device.machine.most_inline_bytes) {
    errno = EINVAL;
    return nullptr;
  }
  auto* const pair = Count(new NicPair{});
  pair->context = domain->context;
  pair->pd = domain;
  pair->send_cq = wanted->send_cq;
  pair->recv_cq = wanted->recv_cq;
  pair->cap = wanted->cap;
  pair->signals_all = wanted->sq_sig_all != 0;
  pair->state = IBV_QPS_RESET;
  pair->qp_num = device.next_number++;
  device.pairs[pair->qp_num] = pair;
  return pair;
}

// The call that moves a pair to that state; states that only failures lead to are not refused.
int RefusalOf(ibv_qp_state to) {
  switch (to) {
    case IBV_QPS_INIT:
      return SimulatedRefusals::Note(SimulatedCall::kInitialize);
    case IBV_QPS_RTR:
      return SimulatedRefusals::Note(SimulatedCall::kConnectToReceive);
    case IBV_QPS_RTS:
      return SimulatedRefusals::Note(SimulatedCall::kConnectToSend);
    default:
      return 0;
  }
}

int ModifyPair(ibv_qp* base, ibv_qp_attr* to, int mask) {
  if (const int error = RefusalOf(to->qp_state); error != 0) return error;
  const std::lock_guard lock(Device().mutex());
  auto* const pair = static_cast<NicPair*>(base);
  if ((mask & IBV_QP_STATE) == 0) return EINVAL;
  if (to->qp_state == IBV_QPS_ERR) {
    Device().Flush(pair);
    return 0;
  }
  const bool follows = to->qp_state == pair->state + 1 && to->qp_state <= IBV_QPS_RTS;
  if (!follows) return EINVAL;
  if (to->qp_state == IBV_QPS_RTR) pair->peer = to->dest_qp_num;
  pair->state = to->qp_state;
  Device().Wake();
  return 0;
}

int DestroyPair(ibv_qp* base) {
  const std::lock_guard lock(Device().mutex());
  const int error = Device().machine.destroy_error;
  if (error != 0 && error != EIO) return error;
  Device().pairs.erase(base->qp_num);
  Delete<NicPair>(base);
  return error;
}

}  // namespace

const VerbsApi* SimulatedVerbs::Api() {
  static const VerbsApi api = {
      .get_device_list = GetDeviceList,
      .free_device_list = FreeDeviceList,
      .get_device_name = GetDeviceName,
      .open_device = OpenDevice,
      .close_device = CloseDevice,
      .query_device = QueryDevice,
      .query_port = QueryPort,
      .query_gid_table = QueryGidTable,
      .query_pkey = QueryPkey,
      .get_async_event = GetAsyncEvent,
      .ack_async_event = AckAsyncEvent,
      .alloc_pd = AllocDomain,
      .dealloc_pd = DeallocDomain,
      .reg_mr = RegisterMemory,
      .dereg_mr = DeregisterMemory,
      .create_comp_channel = CreateChannel,
      .destroy_comp_channel = DestroyChannel,
      .create_cq = CreateQueue,
      .destroy_cq = DestroyQueue,
      .get_cq_event = GetQueueEvent,
      .ack_cq_events = AckQueueEvents,
      .create_qp = CreatePair,
      .modify_qp = ModifyPair,
      .destroy_qp = DestroyPair,
  };
  return &api;
}

void SimulatedVerbs::SetMachine(const SimulatedMachine& machine) {
  const std::lock_guard lock(Device().mutex());
  Device().machine = machine;
}

SimulatedCounts SimulatedVerbs::Counts() {
  const std::lock_guard lock(Device().mutex());
  SimulatedCounts counts = Device().counts;
  for (const auto& [number, pair] : Device().pairs) {
    counts.waiting += pair->requests.size() + pair->sent.size() + pair->received.size();
  }
  return counts;
}

void SimulatedVerbs::FailAfter(uint64_t requests, ibv_wc_status status) {
  const std::lock_guard lock(Device().mutex());
  Device().fail_after = requests;
  Device().fail_with = status;
}

void SimulatedVerbs::RaiseEvent(ibv_event_type type, int port) {
  const std::lock_guard lock(Device().mutex());
  ibv_async_event event{};
  event.event_type = type;
  event.element.port_num = port;
  for (NicContext* context : Device().contexts) Device().Raise(context, event);
}

void SimulatedVerbs::FailPairs() {
  const std::lock_guard lock(Device().mutex());
  for (const auto& [number, pair] : Device().pairs) Device().Flush(pair);
  Device().Wake();
}

void SimulatedVerbs::Seed(uint64_t seed) {
  const std::lock_guard lock(Device().mutex());
  Device().random.seed(seed);
}

}  // namespace annulus
