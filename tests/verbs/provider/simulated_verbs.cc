#include "tests/verbs/provider/simulated_verbs.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "tests/verbs/provider/simulated_forks.h"
#include "tests/verbs/provider/simulated_nic.h"
#include "tests/verbs/provider/simulated_refusals.h"

namespace annulus {
namespace {

SimulatedNic& Device() { return SimulatedNic::Get(); }
bool Refuses(SimulatedCall call) { return SimulatedRefusals::Refuses(call); }

int Busy() {
  ++Device().counts.busy;
  return EBUSY;
}

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
  bool early = false;
  {
    const std::lock_guard lock(Device().mutex());
    early = pair->state == IBV_QPS_INIT;
  }
  if (early && Refuses(SimulatedCall::kPostReceive)) {
    *bad = request;
    return errno;
  }
  return Device().PostReceive(static_cast<NicPair*>(pair), request, bad);
}

ibv_pd* AllocDomain(ibv_context* context) {
  if (Refuses(SimulatedCall::kDomain)) return nullptr;
  const std::lock_guard lock(Device().mutex());
  auto* const domain = Device().Count(new ibv_pd{});
  domain->context = context;
  return domain;
}

int DeallocDomain(ibv_pd* domain) {
  const std::lock_guard lock(Device().mutex());
  bool used = false;
  for (const auto& [number, pair] : Device().pairs) used |= pair->pd == domain;
  for (const auto& [key, region] : Device().regions) used |= region->pd == domain;
  if (used) return Busy();
  Device().Delete<ibv_pd>(domain);
  return 0;
}

// With the mutex.
NicRegion* NewRegion(ibv_pd* domain, void* memory, size_t bytes, int access) {
  SimulatedNic& device = Device();
  if (device.counts.registered_bytes + bytes > device.machine.most_registered_bytes) {
    errno = ENOMEM;
    return nullptr;
  }
  device.counts.registered_bytes += bytes;
  ++device.counts.registrations;
  auto* const region = Device().Count(new NicRegion{});
  region->context = domain->context;
  region->pd = domain;
  region->addr = memory;
  region->length = bytes;
  region->lkey = region->rkey = device.next_number++;
  region->access = access;
  device.regions[region->lkey] = region;
  return region;
}

ibv_mr* RegisterMemory(ibv_pd* domain, void* memory, size_t bytes, int access) {
  if (Refuses(SimulatedCall::kRegister)) return nullptr;
  const std::lock_guard lock(Device().mutex());
  NicRegion* const region = NewRegion(domain, memory, bytes, access);
  if (region != nullptr) NoteMemory(&Device(), region);
  return region;
}

ibv_mr* RegisterDmaBuf(ibv_pd* domain, uint64_t offset, size_t bytes, uint64_t address, int fd, int access) {
  if (Refuses(SimulatedCall::kRegister)) return nullptr;
  const std::lock_guard lock(Device().mutex());
  errno = Device().machine.dma_buf_error;
  if (Device().counts.dma_buf_bytes + bytes > Device().machine.most_dma_buf_bytes) errno = ENOMEM;
  if (errno != 0) return nullptr;
  constexpr uint64_t kPage = 4096;
  void* const file = mmap(nullptr, offset + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const bool is_aligned = address % kPage == offset % kPage;
  NicRegion* const region =
      file != MAP_FAILED && is_aligned ? NewRegion(domain, reinterpret_cast<void*>(address), bytes, access) : nullptr;
  if (region == nullptr) {
    if (file == MAP_FAILED || !is_aligned) errno = EINVAL;
    if (file != MAP_FAILED) munmap(file, offset + bytes);
    return nullptr;
  }
  region->file = static_cast<std::byte*>(file);
  region->file_bytes = offset + bytes;
  region->file_offset = offset;
  Device().counts.dma_buf_bytes += bytes;
  return region;
}

int DeregisterMemory(ibv_mr* region) {
  const std::lock_guard lock(Device().mutex());
  const auto* const own = static_cast<const NicRegion*>(region);
  if (own->file != nullptr) {
    std::erase_if(Device().hidden, [own](const auto& each) {
      return each.first >= own->file && each.first < own->file + own->file_bytes;
    });
    munmap(own->file, own->file_bytes);
    Device().counts.dma_buf_bytes -= region->length;
  }
  Device().regions.erase(region->lkey);
  Device().counts.registered_bytes -= region->length;
  NoteEnd(&Device(), *static_cast<NicRegion*>(region));
  Device().Delete<NicRegion>(region);
  return 0;
}

ibv_comp_channel* CreateChannel(ibv_context* context) {
  if (Refuses(SimulatedCall::kChannel)) return nullptr;
  const std::lock_guard lock(Device().mutex());
  auto* const channel = Device().Count(new NicChannel{});
  channel->context = context;
  channel->fd = eventfd(0, kNicDescriptorFlags);
  return channel;
}

int DestroyChannel(ibv_comp_channel* channel) {
  const std::lock_guard lock(Device().mutex());
  close(channel->fd);
  Device().Delete<NicChannel>(channel);
  return 0;
}

ibv_cq* CreateQueue(ibv_context* context, int completions, void*, ibv_comp_channel* channel, int) {
  if (Refuses(SimulatedCall::kQueue)) return nullptr;
  const std::lock_guard lock(Device().mutex());
  NoteMemory(&Device(), nullptr);
  auto* const queue = Device().Count(new NicQueue{});
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
  Device().Delete<NicQueue>(queue);
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
  auto* const pair = Device().Count(new NicPair{});
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
    Device().Wake();
    return 0;
  }
  const bool follows = to->qp_state == pair->state + 1 && to->qp_state <= IBV_QPS_RTS;
  if (!follows) return EINVAL;
  if (to->qp_state == IBV_QPS_INIT) {
    pair->port = to->port_num;
    pair->access = static_cast<int>(to->qp_access_flags);
  }
  const int reads = to->qp_state == IBV_QPS_RTR ? to->max_dest_rd_atomic : to->max_rd_atomic;
  if (to->qp_state != IBV_QPS_INIT && reads > Device().machine.most_reads) return EINVAL;
  if (to->qp_state == IBV_QPS_RTS) pair->most_reads = reads;
  if (to->qp_state == IBV_QPS_RTR) {
    pair->most_answers = reads;
    pair->peer = to->dest_qp_num;
    pair->route = to->ah_attr;
  }
  pair->state = to->qp_state;
  Device().Wake();
  return 0;
}

int DestroyPair(ibv_qp* base) {
  const std::lock_guard lock(Device().mutex());
  const int error = Device().machine.destroy_error;
  if (error != 0 && error != EIO) return error;
  Device().pairs.erase(base->qp_num);
  Device().Delete<NicPair>(base);
  return error;
}

}  // namespace

const VerbsApi* SimulatedVerbs::Api() {
  static const VerbsApi api = [] {
    VerbsApi made{};
    SetPortFunctions(&made);
    SetForkFunctions(&made);
    made.alloc_pd = AllocDomain;
    made.dealloc_pd = DeallocDomain;
    made.reg_mr = RegisterMemory;
    made.dereg_mr = DeregisterMemory;
    made.reg_dmabuf_mr = RegisterDmaBuf;
    made.create_comp_channel = CreateChannel;
    made.destroy_comp_channel = DestroyChannel;
    made.create_cq = CreateQueue;
    made.destroy_cq = DestroyQueue;
    made.get_cq_event = GetQueueEvent;
    made.ack_cq_events = AckQueueEvents;
    made.create_qp = CreatePair;
    made.modify_qp = ModifyPair;
    made.destroy_qp = DestroyPair;
    return made;
  }();
  return &api;
}

void SetDataFunctions(ibv_context* context) {
  context->ops.poll_cq = PollCq;
  context->ops.req_notify_cq = RequestNotify;
  context->ops.post_send = PostSend;
  context->ops.post_recv = PostReceive;
}

void SimulatedVerbs::SetMachine(const SimulatedMachine& machine) {
  const std::lock_guard lock(Device().mutex());
  Device().machine = machine;
  Device().protects = Device().protects_too_late = false;
  SetDevices(machine);
  Device().Wake();
}

SimulatedCounts SimulatedVerbs::Counts() {
  const std::lock_guard lock(Device().mutex());
  SimulatedCounts counts = Device().counts;
  for (const auto& [number, pair] : Device().pairs) {
    if (!Device().IsBlocked(*pair)) counts.waiting += pair->requests.size() + pair->reads.size();
    counts.waiting += pair->sent.size() + pair->received.size();
  }
  return counts;
}

void SimulatedVerbs::FailAfter(uint64_t requests, ibv_wc_status status) {
  const std::lock_guard lock(Device().mutex());
  Device().fail_after = requests;
  Device().fail_with = status;
}

void SimulatedVerbs::Allow(uint64_t requests) {
  const std::lock_guard lock(Device().mutex());
  Device().allowed = requests;
  Device().Wake();
}

void SimulatedVerbs::ShowWrites() {
  const std::lock_guard lock(Device().mutex());
  for (const auto& [place, data] : Device().hidden) std::memcpy(place, data.data(), data.size());
  Device().hidden.clear();
}

void SimulatedVerbs::RaiseEvent(ibv_event_type type, int port) {
  const std::lock_guard lock(Device().mutex());
  ibv_async_event event{};
  event.event_type = type;
  event.element.port_num = port;
  for (NicContext* context : Device().contexts) Device().Raise(context, event);
}

void SimulatedVerbs::FailPairs(int device) {
  const std::lock_guard lock(Device().mutex());
  for (const auto& [number, pair] : Device().pairs) {
    if (device < 0 || static_cast<const NicContext*>(pair->context)->number == device) Device().Flush(pair);
  }
  Device().Wake();
}

void SimulatedVerbs::Seed(uint64_t seed) {
  const std::lock_guard lock(Device().mutex());
  Device().random.seed(seed);
}

}  // namespace annulus
