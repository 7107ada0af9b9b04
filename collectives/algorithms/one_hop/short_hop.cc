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
  slice_ = slice;
  for (Peer& peer : peers_) {
    peer.sends = peer.receives = true;
    peer.outgoing = peer.incoming = {0, work->call.count, bytes};
  }
  num_sends_ = num_receives_ = static_cast<int>(peers_.size());
  StartAgain();
}

void ShortHop::Start(const Work* work, const Schedule& schedule) {
  work_ = work;
  slice_ = 0;
  num_sends_ = num_receives_ = 0;
  const size_t n = peers_.size() + 1;
  for (size_t k = 1; k < n; ++k) {
    Peer& peer = peers_[k - 1];
    Step send;
    Step receive;
    peer.sends = schedule.At(2 * k, &send);
    peer.receives = schedule.At(2 * (n - k) + 1, &receive);
    peer.outgoing = {send.input_offset, send.count, static_cast<uint32_t>(send.bytes)};
    peer.incoming = {receive.output_offset, receive.count, static_cast<uint32_t>(receive.bytes)};
    num_sends_ += peer.sends ? 1 : 0;
    num_receives_ += peer.receives ? 1 : 0;
  }
  StartAgain();
}

Status ShortHop::Progress(bool* moved) {
  if (unsent_ > 0) ANNULUS_RETURN_IF_ERROR(SendAll(moved));
  if (missing_ == 0) return Status();
  ANNULUS_RETURN_IF_ERROR(ReceiveAll(moved));
  peers_lead_ = missing_ == 0;
  const int polls = polls_in_memory_ ? work_->short_polls : 1;
  for (int poll = 1; poll < polls && missing_ > 0; ++poll) ANNULUS_RETURN_IF_ERROR(ReceiveAll(moved));
  return Status();
}

Awaits ShortHop::SendFirst(bool looks) {
  bool moved = false;
  if (!polls_in_memory_) return Awaits::kAll;
  if (unsent_ > 0 && (!SendAll(&moved).ok() || !Flush() || unsent_ > 0)) return Awaits::kAll;
  if (looks && peers_lead_ && missing_ > 0) {
    if (!ReceiveAll(&moved).ok()) return Awaits::kAll;
    peers_lead_ = missing_ == 0;
  }
  return missing_ == 0 ? Awaits::kNothing : Awaits::kArrivals;
}

Status ShortHop::SendAll(bool* moved) {
  MakeTag();
  for (Peer& peer : peers_) {
    if (peer.sent) continue;
    const Slice& slice = peer.outgoing;
    own_tag_ = WithCount(own_tag_, slice.count);
    Status sent = peer.short_path->SendCopy(own_tag_, work_->input.data + slice.offset, slice.bytes);
    if (sent.would_block()) continue;
    ANNULUS_RETURN_IF_ERROR(std::move(sent));
    peer.sent = *moved = true;
    --unsent_;
    if (!counts_) continue;
    work_->monitor->Sent(peer.rank, slice.bytes);
    Trace(TraceEvent::Kind::kSent, peer, slice.bytes);
  }
  return Status();
}

Status ShortHop::ReceiveAll(bool* moved) {
  for (Peer& peer : peers_) {
    ShortPath::Slice slice;
    if (peer.came || !peer.short_path->Peek(&slice)) continue;
    const Tag tag = WithCount(WithChunk(own_tag_, static_cast<uint32_t>(peer.rank)), peer.incoming.count);
    ANNULUS_RETURN_IF_ERROR(CheckSlice({tag, peer.incoming.bytes}, {slice.tag, slice.bytes}, peer.rank));
    if (slice.data == nullptr) {
      return {Code::kProtocol, "rank " + std::to_string(peer.rank) + " sent a short slice in another form", peer.rank,
              0};
    }
    peer.data = slice.data;
    peer.came = *moved = true;
    --missing_;
    if (!counts_) continue;
    work_->monitor->Received(peer.rank, slice.bytes);
    Trace(TraceEvent::Kind::kReceived, peer, slice.bytes);
  }
  return Status();
}

void ShortHop::StoreAll() const {
  for (const Peer& peer : peers_) {
    const Slice& slice = peer.incoming;
    if (peer.receives && slice.bytes > 0) std::memcpy(work_->output.data + slice.offset, peer.data, slice.bytes);
  }
}

void ShortHop::Trace(TraceEvent::Kind kind, const Peer& peer, uint32_t bytes) const {
  const Nanoseconds now = work_->TraceClock();
  if (now == 0) [[likely]]
    return;
  Step step;
  step.slice = slice_;
  step.chunk = static_cast<uint32_t>(kind == TraceEvent::Kind::kSent ? rank_ : peer.rank);
  work_->TraceSlice(kind, step, 0, peer.rank, bytes, now);
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
