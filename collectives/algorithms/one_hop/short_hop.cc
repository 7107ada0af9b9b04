#include "collectives/algorithms/one_hop/short_hop.h"

#include <algorithm>
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
  own_tag_ = PackTag(work_->call, {static_cast<uint32_t>(rank_), slice_, 0});
  for (Peer& peer : peers_) {
    if (peer.sent) continue;
    Status sent = peer.short_path->SendCopy(own_tag_, work_->input.data, bytes_);
    if (sent.would_block()) continue;
    ANNULUS_RETURN_IF_ERROR(std::move(sent));
    peer.sent = *moved = true;
    --unsent_;
    if (counts_) work_->monitor->Sent(peer.rank, bytes_);
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
    if (counts_) work_->monitor->Received(peer.rank, bytes_);
  }
  return Status();
}

int ShortHop::AwaitedPeer() const {
  for (const Peer& peer : peers_) {
    if (!peer.sent || !peer.came) return peer.rank;
  }
  return -1;
}

bool ShortHop::WaitsFor(const Endpoint* endpoint) const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [endpoint](const Peer& peer) { return peer.endpoint == endpoint && !(peer.sent && peer.came); });
}

}  // namespace annulus
