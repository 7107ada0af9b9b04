#include "collectives/algorithms/one_hop/short_hop.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "collectives/algorithms/slice_tag.h"

namespace annulus {

ShortHop::ShortHop(int rank, int nranks, const Links* links, bool counts) : rank_(rank), counts_(counts) {
  if (nranks < 2) return;
  most_bytes_ = UINT32_MAX;
  for (int k = 1; k < nranks; ++k) {
    Peer peer;
    peer.rank = (rank + k) % nranks;
    peer.endpoint = links->At(peer.rank, 0);
    peer.short_path = peer.endpoint->shortcuts().short_path;
    polls_in_memory_ &= peer.endpoint->limits().shares_memory;
    most_bytes_ = std::min<size_t>(most_bytes_, peer.endpoint->limits().short_bytes);
    peers_.push_back(peer);
  }
}

void ShortHop::Start(const Work* work, uint32_t bytes, uint64_t slice) {
  work_ = work;
  bytes_ = bytes;
  slice_ = slice;
  for (Peer& peer : peers_) {
    peer.sends = peer.receives = true;
    peer.input_offset = 0;
  }
  num_sends_ = num_receives_ = static_cast<int>(peers_.size());
  StartAgain();
}

void ShortHop::Start(const Work* work, const Schedule& schedule) {
  work_ = work;
  bytes_ = 0;
  slice_ = 0;
  num_sends_ = num_receives_ = 0;
  const size_t n = peers_.size() + 1;
  for (size_t k = 1; k < n; ++k) {
    Peer& peer = peers_[k - 1];
    Step send;
    Step receive;
    peer.sends = schedule.At(2 * k, &send);
    peer.receives = schedule.At(2 * (n - k) + 1, &receive);
    peer.input_offset = send.input_offset;
    peer.output_offset = receive.output_offset;
    num_sends_ += peer.sends ? 1 : 0;
    num_receives_ += peer.receives ? 1 : 0;
    bytes_ = static_cast<uint32_t>(std::max({size_t{bytes_}, send.bytes, receive.bytes}));
  }
  StartAgain();
}

Status ShortHop::Progress(bool* moved) {
  if (unsent_ > 0) ANNULUS_RETURN_IF_ERROR(SendAll(moved));
  const int polls = polls_in_memory_ ? work_->short_polls : 1;
  for (int poll = 0; poll < polls && missing_ > 0; ++poll) ANNULUS_RETURN_IF_ERROR(ReceiveAll(moved));
  return Status();
}

void ShortHop::SendFirst() {
  bool moved = false;
  if (polls_in_memory_ && SendAll(&moved).ok()) Flush();
}

Status ShortHop::SendAll(bool* moved) {
  MakeTag();
  for (Peer& peer : peers_) {
    if (peer.sent) continue;
    Status sent = peer.short_path->SendCopy(own_tag_, work_->input.data + peer.input_offset, bytes_);
    if (sent.would_block()) continue;
    ANNULUS_RETURN_IF_ERROR(std::move(sent));
    peer.sent = *moved = true;
    --unsent_;
    if (!counts_) continue;
    work_->monitor->Sent(peer.rank, bytes_);
    Trace(TraceEvent::Kind::kSent, peer);
  }
  return Status();
}

Status ShortHop::ReceiveAll(bool* moved) {
  for (Peer& peer : peers_) {
    ShortPath::Slice slice;
    if (peer.came || !peer.short_path->Peek(&slice)) continue;
    ANNULUS_RETURN_IF_ERROR(CheckSlice({WithChunk(own_tag_, static_cast<uint32_t>(peer.rank)), bytes_},
                                       {slice.tag, slice.bytes}, peer.rank));
    if (slice.data == nullptr) {
      return {Code::kProtocol, "rank " + std::to_string(peer.rank) + " sent a short slice in another form", peer.rank,
              0};
    }
    peer.data = slice.data;
    peer.came = *moved = true;
    --missing_;
    if (!counts_) continue;
    work_->monitor->Received(peer.rank, bytes_);
    Trace(TraceEvent::Kind::kReceived, peer);
  }
  return Status();
}

void ShortHop::StoreAll() const {
  if (bytes_ == 0) return;
  for (const Peer& peer : peers_) {
    if (peer.receives) std::memcpy(work_->output.data + peer.output_offset, peer.data, bytes_);
  }
}

void ShortHop::Trace(TraceEvent::Kind kind, const Peer& peer) const {
  const Nanoseconds now = work_->TraceClock();
  if (now == 0) [[likely]]
    return;
  Step step;
  step.slice = slice_;
  step.chunk = static_cast<uint32_t>(kind == TraceEvent::Kind::kSent ? rank_ : peer.rank);
  work_->TraceSlice(kind, step, 0, peer.rank, bytes_, now);
}

int ShortHop::AwaitedPeer() const {
  const auto awaited = std::ranges::find_if(peers_, IsAwaited);
  return awaited != peers_.end() ? awaited->rank : -1;
}

bool ShortHop::WaitsFor(const Endpoint* endpoint) const {
  return std::ranges::any_of(peers_,
                             [endpoint](const Peer& peer) { return peer.endpoint == endpoint && IsAwaited(peer); });
}

}  // namespace annulus
