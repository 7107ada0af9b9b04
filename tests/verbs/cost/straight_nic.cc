#include "tests/verbs/cost/straight_nic.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.h"

namespace annulus {
namespace {

struct StraightQueue : ibv_cq {
  std::vector<ibv_wc> ring;
  uint64_t first = 0;
  uint64_t end = 0;

  void Push(const ibv_wc& completion) { ring[end++ % ring.size()] = completion; }
};

struct StraightReceive {
  uint64_t id = 0;
  uint64_t address = 0;
};

struct StraightPair : ibv_qp {
  StraightPair* peer = nullptr;
  std::vector<StraightReceive> receives;  // A ring.
  uint64_t first = 0;
  uint64_t end = 0;
};

// What is made while links are set up.
struct Registry {
  std::mutex mutex;
  std::map<uint32_t, StraightPair*> pairs;
  uint32_t next = 17;
};

Registry& AllPairs() {
  static Registry registry;
  return registry;
}

thread_local StraightCounts counts;

class Timed {
 public:
  Timed() : begin_(Ticks()) { ++counts.calls; }
  ~Timed() { counts.ticks += Ticks() - begin_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  const uint64_t begin_;
};

std::byte* Pointer(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

void Complete(StraightPair* pair, const ibv_send_wr& request) {
  ibv_wc done{};
  done.wr_id = request.wr_id;
  done.qp_num = pair->qp_num;
  static_cast<StraightQueue*>(pair->send_cq)->Push(done);
}

void Read(StraightPair* pair, const ibv_send_wr& request) {
  std::memcpy(Pointer(request.sg_list->addr), Pointer(request.wr.rdma.remote_addr), request.sg_list->length);
  counts.carried_bytes += request.sg_list->length;
  ++counts.send_requests;
  Complete(pair, request);
}

void CarryOut(StraightPair* pair, const ibv_send_wr& request) {
  if (request.opcode == IBV_WR_RDMA_READ) return Read(pair, request);
  StraightPair* const peer = pair->peer;
  const bool is_write = request.opcode != IBV_WR_SEND_WITH_IMM;
  const bool takes_receive = request.opcode != IBV_WR_RDMA_WRITE;
  const StraightReceive receive =
      takes_receive ? peer->receives[peer->first % peer->receives.size()] : StraightReceive();
  std::byte* to = Pointer(is_write ? request.wr.rdma.remote_addr : receive.address);
  uint32_t bytes = 0;
  for (const ibv_sge& piece : std::span(request.sg_list, static_cast<size_t>(request.num_sge))) {
    std::memcpy(to + bytes, Pointer(piece.addr), piece.length);
    bytes += piece.length;
  }
  counts.carried_bytes += bytes;
  ++counts.send_requests;
  if ((request.send_flags & IBV_SEND_INLINE) != 0) ++counts.inline_requests;
  if (takes_receive) {
    ++peer->first;
    ibv_wc done{};
    done.wr_id = receive.id;
    done.opcode = is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    done.byte_len = bytes;
    done.imm_data = request.imm_data;
    done.wc_flags = IBV_WC_WITH_IMM;
    done.qp_num = peer->qp_num;
    static_cast<StraightQueue*>(peer->recv_cq)->Push(done);
  }
  if ((request.send_flags & IBV_SEND_SIGNALED) != 0) Complete(pair, request);
}

int PostSend(ibv_qp* base, ibv_send_wr* request, ibv_send_wr**) {
  const Timed timed;
  ++counts.send_doorbells;
  for (; request != nullptr; request = request->next) CarryOut(static_cast<StraightPair*>(base), *request);
  return 0;
}

int PostReceive(ibv_qp* base, ibv_recv_wr* request, ibv_recv_wr**) {
  const Timed timed;
  auto* const pair = static_cast<StraightPair*>(base);
  ++counts.recv_doorbells;
  for (; request != nullptr; request = request->next) {
    ++counts.recv_requests;
    pair->receives[pair->end++ % pair->receives.size()] = {request->wr_id, request->sg_list->addr};
  }
  return 0;
}

int Poll(ibv_cq* base, int most, ibv_wc* completions) {
  const Timed timed;
  auto* const queue = static_cast<StraightQueue*>(base);
  ++counts.polls;
  int polled = 0;
  for (; polled < most && queue->first < queue->end; ++polled) {
    completions[polled] = queue->ring[queue->first++ % queue->ring.size()];
    ++(completions[polled].wc_flags != 0 ? counts.recv_completions : counts.send_completions);
  }
  return polled;
}

int RequestNotify(ibv_cq*, int) { return 0; }

// Two devices, of which a rank uses the first unless it names both.
ibv_device devices[2];

ibv_device** GetDeviceList(int* count) {
  *count = 2;
  return new ibv_device* [3] { &devices[0], &devices[1], nullptr };
}

void FreeDeviceList(ibv_device** list) { delete[] list; }
const char* GetDeviceName(ibv_device* device) { return device == &devices[0] ? "straight0" : "straight1"; }

ibv_context* OpenDevice(ibv_device* device) {
  auto* const context = new ibv_context{};
  context->device = device;
  context->async_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  context->cmd_fd = -1;
  context->ops.poll_cq = Poll;
  context->ops.req_notify_cq = RequestNotify;
  context->ops.post_send = PostSend;
  context->ops.post_recv = PostReceive;
  return context;
}

int CloseDevice(ibv_context* context) {
  close(context->async_fd);
  delete context;
  return 0;
}

int QueryDevice(ibv_context*, ibv_device_attr* attributes) {
  *attributes = {};
  attributes->phys_port_cnt = 1;
  attributes->max_cqe = 1 << 16;
  attributes->max_qp_rd_atom = attributes->max_qp_init_rd_atom = 16;
  return 0;
}

int QueryPort(ibv_context*, uint8_t, _compat_ibv_port_attr* compatible) {
  auto* const attributes = reinterpret_cast<ibv_port_attr*>(compatible);
  attributes->state = IBV_PORT_ACTIVE;
  attributes->active_mtu = IBV_MTU_4096;
  attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

ssize_t QueryGidTable(ibv_context* context, ibv_gid_entry* entries, size_t, uint32_t, size_t) {
  entries[0] = {{}, 0, 1, IBV_GID_TYPE_ROCE_V2, 1};
  entries[0].gid.raw[10] = entries[0].gid.raw[11] = 0xff;
  entries[0].gid.raw[12] = 127;
  entries[0].gid.raw[14] = context->device == &devices[0] ? 0 : 1;
  entries[0].gid.raw[15] = 1;
  return 1;
}

int QueryPkey(ibv_context*, uint8_t, int, __be16* pkey) {
  *pkey = htons(0xffff);
  return 0;
}

int GetAsyncEvent(ibv_context*, ibv_async_event*) { return -1; }
void AckAsyncEvent(ibv_async_event*) {}

ibv_pd* AllocDomain(ibv_context* context) {
  auto* const domain = new ibv_pd{};
  domain->context = context;
  return domain;
}

int DeallocDomain(ibv_pd* domain) {
  delete domain;
  return 0;
}

ibv_mr* RegisterMemory(ibv_pd* domain, void* memory, size_t bytes, int) {
  auto* const region = new ibv_mr{};
  region->context = domain->context;
  region->pd = domain;
  region->addr = memory;
  region->length = bytes;
  region->lkey = region->rkey = 1;
  return region;
}

int DeregisterMemory(ibv_mr* region) {
  delete region;
  return 0;
}

ibv_comp_channel* CreateChannel(ibv_context* context) {
  auto* const channel = new ibv_comp_channel{};
  channel->context = context;
  channel->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return channel;
}

int DestroyChannel(ibv_comp_channel* channel) {
  close(channel->fd);
  delete channel;
  return 0;
}

ibv_cq* CreateQueue(ibv_context* context, int completions, void*, ibv_comp_channel* channel, int) {
  auto* const queue = new StraightQueue{};
  queue->context = context;
  queue->channel = channel;
  queue->ring.resize(static_cast<size_t>(completions));
  return queue;
}

int DestroyQueue(ibv_cq* queue) {
  delete static_cast<StraightQueue*>(queue);
  return 0;
}

int GetQueueEvent(ibv_comp_channel*, ibv_cq**, void**) { return -1; }
void AckQueueEvents(ibv_cq*, unsigned) {}

ibv_qp* CreatePair(ibv_pd* domain, ibv_qp_init_attr* wanted) {
  auto* const pair = new StraightPair{};
  pair->context = domain->context;
  pair->pd = domain;
  pair->send_cq = wanted->send_cq;
  pair->recv_cq = wanted->recv_cq;
  pair->receives.resize(wanted->cap.max_recv_wr);
  Registry& registry = AllPairs();
  const std::lock_guard lock(registry.mutex);
  pair->qp_num = registry.next++;
  registry.pairs[pair->qp_num] = pair;
  return pair;
}

// Both pairs exist by the time either is connected; each finds the other.
int ModifyPair(ibv_qp* base, ibv_qp_attr* to, int) {
  Registry& registry = AllPairs();
  const std::lock_guard lock(registry.mutex);
  auto* const pair = static_cast<StraightPair*>(base);
  if (to->qp_state == IBV_QPS_RTR) pair->peer = registry.pairs.at(to->dest_qp_num);
  return 0;
}

int DestroyPair(ibv_qp* pair) {
  Registry& registry = AllPairs();
  const std::lock_guard lock(registry.mutex);
  registry.pairs.erase(pair->qp_num);
  delete static_cast<StraightPair*>(pair);
  return 0;
}

ibv_fork_status ForkStatus() { return IBV_FORK_UNNEEDED; }

}  // namespace

const VerbsApi* StraightVerbs() {
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
      .is_fork_initialized = ForkStatus,
  };
  return &api;
}

const StraightCounts& CountsOfStraightNic() { return counts; }

#if defined(__x86_64__)
uint64_t Ticks() { return __builtin_ia32_rdtsc(); }
#else
uint64_t Ticks() { return static_cast<uint64_t>(Now()); }
#endif

double TicksPerNanosecond() {
  constexpr Nanoseconds kWhile = 20 * kMillisecond;
  const Nanoseconds begin = Now();
  const uint64_t first = Ticks();
  while (Now() - begin < kWhile) {
  }
  return static_cast<double>(Ticks() - first) / static_cast<double>(Now() - begin);
}

}  // namespace annulus
