#include "tests/verbs/provider/simulated_nic.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <span>

namespace annulus {
namespace {

// Tries of a message that finds no receive, before its pair fails.
constexpr int kNotReadyTries = 1000;

std::byte* Pointer(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

const NicContext& ContextOf(const NicPair& pair) { return *static_cast<const NicContext*>(pair.context); }

// Whether a packet of `from` to `to` goes to the right port.
bool ReachesPort(const NicPair& from, const NicPair& to) {
  const SimulatedPort port = PortOf(to);
  return Arrives(PortOf(from), from.route, port) && (port.infiniband || IsGidOf(to, from.route.grh.dgid));
}

bool IsWrite(ibv_wr_opcode opcode) { return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM; }

}  // namespace

SimulatedNic& SimulatedNic::Get() {
  static SimulatedNic device;
  return device;
}

SimulatedNic::SimulatedNic() : thread_([this] { Run(); }) {}

SimulatedNic::~SimulatedNic() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  Wake();
  thread_.join();
}

int SimulatedNic::PostSend(NicPair* pair, ibv_send_wr* request, ibv_send_wr** bad) {
  const std::lock_guard lock(mutex_);
  for (; request != nullptr; request = request->next) {
    const bool full = pair->posted - pair->reclaimed >= pair->cap.max_send_wr;
    const std::span pieces(request->sg_list, static_cast<size_t>(request->num_sge));
    uint64_t bytes = 0;
    for (const ibv_sge& piece : pieces) bytes += piece.length;
    const bool is_inline = (request->send_flags & IBV_SEND_INLINE) != 0;
    if (full || pieces.size() > pair->cap.max_send_sge || (is_inline && bytes > pair->cap.max_inline_data) ||
        (pair->state != IBV_QPS_RTS && pair->state != IBV_QPS_ERR)) {
      ++counts.refused_posts;
      *bad = request;
      return full ? ENOMEM : EINVAL;
    }
    NicRequest& taken = pair->requests.emplace_back();
    taken.request = *request;
    taken.index = pair->posted++;
    taken.pieces.assign(pieces.begin(), pieces.end());
    for (const ibv_sge& piece : pieces) {
      if (is_inline) taken.copy.insert(taken.copy.end(), Pointer(piece.addr), Pointer(piece.addr) + piece.length);
    }
  }
  if (pair->state == IBV_QPS_ERR) Flush(pair);
  Wake();
  return 0;
}

int SimulatedNic::PostReceive(NicPair* pair, ibv_recv_wr* request, ibv_recv_wr** bad) {
  const std::lock_guard lock(mutex_);
  for (; request != nullptr; request = request->next) {
    if (pair->receives.size() >= pair->cap.max_recv_wr || pair->state == IBV_QPS_RESET) {
      ++counts.refused_posts;
      *bad = request;
      return ENOMEM;
    }
    pair->receives.push_back({request->wr_id, *request->sg_list});
  }
  if (pair->state == IBV_QPS_ERR) Flush(pair);
  Wake();
  return 0;
}

int SimulatedNic::Poll(NicQueue* queue, int count, ibv_wc* completions) {
  const std::lock_guard lock(mutex_);
  if (queue->overrun) return -1;
  int polled = 0;
  for (; polled < count && !queue->ready.empty(); ++polled) {
    completions[polled] = queue->ready.front();
    queue->ready.pop_front();
    const auto pair = pairs.find(completions[polled].qp_num);
    if (pair == pairs.end()) continue;
    const auto request = pair->second->completed.find(completions[polled].wr_id);
    if (request == pair->second->completed.end()) continue;
    pair->second->reclaimed = request->second;
    pair->second->completed.erase(request);
  }
  return polled;
}

void SimulatedNic::Raise(NicContext* context, const ibv_async_event& event) {
  context->news.push_back(event);
  eventfd_write(context->async_fd, 1);
}

void SimulatedNic::Run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (!Step()) work_.wait(lock);
    // Others get their turn, also where everybody shares a core.
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
}

// Carries out a request or delivers a completion of a random pair. Returns false when there is nothing to do.
bool SimulatedNic::Step() {
  std::vector<NicPair*> busy;
  for (const auto& [number, pair] : pairs) {
    const bool can_send = pair->state == IBV_QPS_RTS && !pair->requests.empty() && !IsBlocked(*pair);
    if (can_send || !pair->sent.empty() || !pair->received.empty()) busy.push_back(pair);
  }
  if (busy.empty()) return false;
  NicPair* const pair = busy[random() % busy.size()];
  switch (random() % 3) {
    case 0:
      if (pair->state == IBV_QPS_RTS && !pair->requests.empty() && HasTurn(*pair)) CarryOut(pair);
      break;
    case 1:
      Deliver(pair, &pair->sent, pair->send_cq);
      break;
    default:
      Deliver(pair, &pair->received, pair->recv_cq);
      break;
  }
  return true;
}

bool SimulatedNic::IsBlocked(const NicPair& pair) const {
  return machine.slowness == 0 && allowed == 0 && ContextOf(pair).number == machine.slow_device;
}

bool SimulatedNic::HasTurn(const NicPair& pair) {
  if (ContextOf(pair).number != machine.slow_device) return true;
  if (machine.slowness != 0) return random() % machine.slowness == 0;
  if (allowed == 0) return false;
  --allowed;
  return true;
}

void SimulatedNic::CarryOut(NicPair* pair) {
  const NicRequest& request = pair->requests.front();
  if (fail_after-- == 0) return Fail(pair, request, fail_with);
  const auto found = pairs.find(pair->peer);
  NicPair* const peer = found == pairs.end() ? nullptr : found->second;
  const ibv_wc_status status = Carry(pair, request, peer);
  if (status == IBV_WC_RNR_RETRY_EXC_ERR && ++pair->not_ready < kNotReadyTries) return;  // It is tried again.
  if (status != IBV_WC_SUCCESS) {
    if (peer != nullptr && status == IBV_WC_REM_ACCESS_ERR) Flush(peer);
    return Fail(pair, request, status);
  }
  pair->not_ready = 0;
  ++counts.requests;
  for (const ibv_sge& piece : request.pieces) {
    counts.device_bytes[static_cast<size_t>(ContextOf(*pair).number)] += piece.length;
  }
  if (pair->signals_all || (request.request.send_flags & IBV_SEND_SIGNALED) != 0) Complete(pair, request, status);
  pair->requests.pop_front();
}

ibv_wc_status SimulatedNic::Carry(NicPair* pair, const NicRequest& request, NicPair* peer) {
  const bool reachable =
      peer != nullptr && peer->peer == pair->qp_num && (peer->state == IBV_QPS_RTR || peer->state == IBV_QPS_RTS);
  if (!reachable || !ReachesPort(*pair, *peer)) return IBV_WC_RETRY_EXC_ERR;
  std::vector<std::byte> data;
  if (!Gather(request, &data)) return IBV_WC_LOC_PROT_ERR;
  const ibv_wr_opcode opcode = request.request.opcode;
  const bool takes_receive = opcode != IBV_WR_RDMA_WRITE;
  if (takes_receive && peer->receives.empty()) {
    ++counts.not_ready;
    return IBV_WC_RNR_RETRY_EXC_ERR;
  }
  if (IsWrite(opcode) && !data.empty()) {
    const auto& target = request.request.wr.rdma;
    const NicRegion* region = FindRegion(target.rkey, target.remote_addr, data.size(), IBV_ACCESS_REMOTE_WRITE);
    if (region == nullptr || region->pd != peer->pd) return IBV_WC_REM_ACCESS_ERR;
    std::memcpy(Pointer(target.remote_addr), data.data(), data.size());
    counts.written_bytes += data.size();
  }
  return takes_receive ? Receive(request, data, peer) : IBV_WC_SUCCESS;
}

ibv_wc_status SimulatedNic::Receive(const NicRequest& request, const std::vector<std::byte>& data, NicPair* peer) {
  const NicReceive receive = peer->receives.front();
  const bool is_write = IsWrite(request.request.opcode);
  if (!is_write) {
    if (data.size() > receive.piece.length) return IBV_WC_REM_INV_REQ_ERR;
    if (FindRegion(receive.piece.lkey, receive.piece.addr, data.size(), IBV_ACCESS_LOCAL_WRITE) == nullptr) {
      return IBV_WC_REM_OP_ERR;
    }
    if (!data.empty()) std::memcpy(Pointer(receive.piece.addr), data.data(), data.size());
    counts.sent_bytes += data.size();
  }
  peer->receives.pop_front();
  NicCompletion& done = peer->received.emplace_back();
  done.completion.wr_id = receive.id;
  done.completion.opcode = is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  done.completion.byte_len = static_cast<uint32_t>(data.size());
  done.completion.imm_data = request.request.imm_data;
  done.completion.qp_num = peer->qp_num;
  done.completion.wc_flags = request.request.opcode == IBV_WR_SEND ? 0 : IBV_WC_WITH_IMM;
  return IBV_WC_SUCCESS;
}

bool SimulatedNic::Gather(const NicRequest& request, std::vector<std::byte>* data) {
  *data = request.copy;
  if (!data->empty()) return true;
  for (const ibv_sge& piece : request.pieces) {
    const NicRegion* const region = FindRegion(piece.lkey, piece.addr, piece.length, 0);
    if (region == nullptr) return false;
    data->insert(data->end(), Pointer(piece.addr), Pointer(piece.addr) + piece.length);
    if (region->access == 0) counts.read_in_place += piece.length;
  }
  return true;
}

NicRegion* SimulatedNic::FindRegion(uint32_t key, uint64_t address, uint64_t bytes, int access) const {
  const auto found = regions.find(key);
  if (found == regions.end()) return nullptr;
  NicRegion* const region = found->second;
  const auto begin = reinterpret_cast<uint64_t>(region->addr);
  const bool inside = address >= begin && bytes <= region->length && address - begin <= region->length - bytes;
  return inside && (region->access & access) == access ? region : nullptr;
}

void SimulatedNic::Complete(NicPair* pair, const NicRequest& request, ibv_wc_status status) {
  NicCompletion& done = pair->sent.emplace_back();
  done.completion.wr_id = request.request.wr_id;
  done.completion.status = status;
  done.completion.opcode = IsWrite(request.request.opcode) ? IBV_WC_RDMA_WRITE : IBV_WC_SEND;
  done.completion.qp_num = pair->qp_num;
  done.index = request.index;
}

void SimulatedNic::Fail(NicPair* pair, const NicRequest& request, ibv_wc_status status) {
  Complete(pair, request, status);
  pair->requests.pop_front();
  Flush(pair);
}

void SimulatedNic::Flush(NicPair* pair) {
  pair->state = IBV_QPS_ERR;
  for (const NicRequest& request : pair->requests) Complete(pair, request, IBV_WC_WR_FLUSH_ERR);
  pair->requests.clear();
  for (const NicReceive& receive : pair->receives) {
    NicCompletion& done = pair->received.emplace_back();
    done.completion.wr_id = receive.id;
    done.completion.status = IBV_WC_WR_FLUSH_ERR;
    done.completion.qp_num = pair->qp_num;
  }
  pair->receives.clear();
}

void SimulatedNic::Deliver(NicPair* pair, std::deque<NicCompletion>* from, ibv_cq* to) {
  if (from->empty()) return;
  auto* const queue = static_cast<NicQueue*>(to);
  const NicCompletion done = from->front();
  from->pop_front();
  if (queue->ready.size() >= static_cast<size_t>(queue->cqe)) {
    ++counts.overruns;
    queue->overrun = true;
    ibv_async_event event{};
    event.event_type = IBV_EVENT_CQ_ERR;
    event.element.cq = queue;
    Raise(static_cast<NicContext*>(pair->context), event);
    return;
  }
  queue->ready.push_back(done.completion);
  ++counts.completions;
  if (from == &pair->sent) pair->completed[done.completion.wr_id] = done.index + 1;
  if (!queue->armed) return;
  queue->armed = false;
  auto* const channel = static_cast<NicChannel*>(queue->channel);
  channel->events.push_back(queue);
  eventfd_write(channel->fd, 1);
}

}  // namespace annulus
