#include "tests/verbs/provider/simulated_nic.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

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

// Whether a region is registered memory of a user, and not the library's own.
bool IsUsers(const NicRegion& region) { return region.access == 0 || (region.access & IBV_ACCESS_REMOTE_READ) != 0; }

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
    const bool is_read = request->opcode == IBV_WR_RDMA_READ;
    if (full || pieces.size() > pair->cap.max_send_sge ||
        (is_inline && (is_read || bytes > pair->cap.max_inline_data)) ||
        (pair->state != IBV_QPS_RTS && pair->state != IBV_QPS_ERR)) {
      ++counts.refused_posts;
      *bad = request;
      return full ? ENOMEM : EINVAL;
    }
    const auto reads = [](const NicRequest& other) { return other.request.opcode == IBV_WR_RDMA_READ; };
    const auto under_way = static_cast<ptrdiff_t>(pair->reads.size()) + std::ranges::count_if(pair->requests, reads);
    if (is_read && under_way >= pair->most_reads) ++counts.read_stalls;
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
  if (machine.poll_error != 0) return machine.poll_error;
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
    const bool can_read = !pair->reads.empty() && !IsBlocked(*pair);
    const bool can_tell = !pair->sent.empty() && pair->sent.front().is_ready;
    if (can_send || can_read || can_tell || !pair->received.empty()) busy.push_back(pair);
  }
  if (busy.empty()) return false;
  NicPair* const pair = busy[random() % busy.size()];
  switch (random() % 3) {
    case 0:
      if (!pair->reads.empty() && random() % 2 == 0) {
        AnswerRead(pair);
      } else if (pair->state == IBV_QPS_RTS && !pair->requests.empty() && HasTurn(*pair)) {
        CarryOut(pair);
      }
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
  if (request.request.opcode == IBV_WR_RDMA_READ) return BeginRead(pair);
  NicPair* const peer = PeerOf(*pair);
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
  const bool is_asked = pair->signals_all || (request.request.send_flags & IBV_SEND_SIGNALED) != 0;
  if (is_asked || !pair->reads.empty()) Complete(pair, request, status);
  if (!is_asked && !pair->reads.empty()) pair->sent.back().is_asked = false;
  pair->requests.pop_front();
}

NicPair* SimulatedNic::PeerOf(const NicPair& pair) const {
  const auto found = pairs.find(pair.peer);
  return found == pairs.end() ? nullptr : found->second;
}

// A device waits here when as many as allowed are under way.
void SimulatedNic::BeginRead(NicPair* pair) {
  if (static_cast<int>(pair->reads.size()) >= pair->most_reads) return;
  Complete(pair, pair->requests.front(), IBV_WC_SUCCESS);
  pair->sent.back().is_ready = false;
  pair->reads.push_back({std::move(pair->requests.front())});
  pair->requests.pop_front();
}

ibv_wc_status SimulatedNic::CheckRead(const NicPair& pair, const NicRequest& request, const NicPair* peer) const {
  const bool reachable =
      peer != nullptr && peer->peer == pair.qp_num && (peer->state == IBV_QPS_RTR || peer->state == IBV_QPS_RTS);
  if (!reachable || !ReachesPort(pair, *peer)) return IBV_WC_RETRY_EXC_ERR;
  const bool answers = (peer->access & IBV_ACCESS_REMOTE_READ) != 0;
  if (!answers || static_cast<int>(pair.reads.size()) > peer->most_answers) return IBV_WC_REM_INV_REQ_ERR;
  const ibv_sge& to = request.pieces[0];
  const auto& from = request.request.wr.rdma;
  const NicRegion* const theirs = FindRegion(from.rkey, from.remote_addr, to.length, IBV_ACCESS_REMOTE_READ);
  if (theirs == nullptr || theirs->pd != peer->pd) return IBV_WC_REM_ACCESS_ERR;
  const NicRegion* const own = FindRegion(to.lkey, to.addr, to.length, IBV_ACCESS_LOCAL_WRITE);
  return own == nullptr || own->pd != pair.pd ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS;
}

void SimulatedNic::AnswerRead(NicPair* pair) {
  if (IsBlocked(*pair)) return;
  NicRead& read = pair->reads.front();
  NicPair* const peer = PeerOf(*pair);
  const ibv_wc_status status = CheckRead(*pair, read.request, peer);
  if (peer != nullptr && (status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR)) Flush(peer);
  if (status != IBV_WC_SUCCESS) return EndRead(pair, status);
  const ibv_sge& to = read.request.pieces[0];
  const uint64_t from = read.request.request.wr.rdma.remote_addr;
  const uint64_t bytes = std::min<uint64_t>(to.length - read.done_bytes, 1 + random() % to.length);
  const NicRegion& theirs = *regions.find(read.request.request.wr.rdma.rkey)->second;
  const NicRegion& own = *regions.find(to.lkey)->second;
  const std::byte* const source = theirs.At(from + read.done_bytes);
  std::byte* const target = own.At(to.addr + read.done_bytes);
  if (own.file != nullptr && machine.hides_from_gpus) {
    hidden.push_back({target, {source, source + bytes}});
  } else {
    std::memcpy(target, source, bytes);
  }
  read.done_bytes += bytes;
  if (read.done_bytes < to.length) return;
  ++counts.requests;
  counts.read_bytes += to.length;
  counts.device_bytes[static_cast<size_t>(ContextOf(*peer).number)] += to.length;
  if (theirs.file != nullptr) counts.read_from_gpus += to.length;
  if (IsUsers(theirs)) counts.read_in_place += to.length;
  if (IsUsers(theirs) && IsUsers(own)) counts.read_landed += to.length;
  if (own.file != nullptr) counts.read_into_gpus += to.length;
  EndRead(pair, status);
}

void SimulatedNic::EndRead(NicPair* pair, ibv_wc_status status) {
  const auto done = std::ranges::find(pair->sent, false, &NicCompletion::is_ready);
  done->completion.status = status;
  if (status != IBV_WC_SUCCESS) return Flush(pair);
  done->is_ready = true;
  pair->reads.pop_front();
}

ibv_wc_status SimulatedNic::Carry(NicPair* pair, const NicRequest& request, NicPair* peer) {
  const bool reachable =
      peer != nullptr && peer->peer == pair->qp_num && (peer->state == IBV_QPS_RTR || peer->state == IBV_QPS_RTS);
  if (!reachable || !ReachesPort(*pair, *peer)) return IBV_WC_RETRY_EXC_ERR;
  std::vector<std::byte> data;
  if (!Gather(request, &data)) return IBV_WC_LOC_PROT_ERR;
  const ibv_wr_opcode opcode = request.request.opcode;
  const bool takes_receive = opcode != IBV_WR_RDMA_WRITE;
  if (takes_receive && (peer->receives.empty() || machine.hides_receives)) {
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
    const std::byte* const from = region->At(piece.addr);
    data->insert(data->end(), from, from + piece.length);
    if (region->file != nullptr) counts.read_from_gpus += piece.length;
    if (IsUsers(*region)) counts.read_in_place += piece.length;
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
  const ibv_wr_opcode opcode = request.request.opcode;
  const bool is_read = opcode == IBV_WR_RDMA_READ;
  done.completion.opcode = is_read ? IBV_WC_RDMA_READ : IsWrite(opcode) ? IBV_WC_RDMA_WRITE : IBV_WC_SEND;
  done.completion.qp_num = pair->qp_num;
  done.index = request.index;
}

void SimulatedNic::Fail(NicPair* pair, const NicRequest& request, ibv_wc_status status) {
  ++counts.failed;
  Complete(pair, request, status);
  pair->requests.pop_front();
  Flush(pair);
}

// What was carried out behind a READ that is under way counts as not carried out.
void SimulatedNic::Flush(NicPair* pair) {
  pair->state = IBV_QPS_ERR;
  bool is_behind = false;
  for (NicCompletion& each : pair->sent) {
    const bool failed = each.completion.status != IBV_WC_SUCCESS;
    is_behind |= !each.is_ready;
    if (!is_behind) continue;
    each.is_ready = each.is_asked = true;
    if (!failed) each.completion.status = IBV_WC_WR_FLUSH_ERR;
  }
  pair->reads.clear();
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
  if (from->empty() || !from->front().is_ready) return;
  if (!from->front().is_asked) return from->pop_front();
  auto* const queue = static_cast<NicQueue*>(to);
  const NicCompletion done = from->front();
  from->pop_front();
  if (queue->ready.size() >= static_cast<size_t>(std::min(queue->cqe, machine.queue_room))) {
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
