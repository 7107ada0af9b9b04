#include "collectives/algorithms/one_hop/express.h"

#include <algorithm>
#include <string>

#include "collectives/algorithms/slice_tag.h"

namespace annulus {

Express::Express(int rank, int nranks, const Links* links, bool has_mesh) : rank_(rank), nranks_(nranks) {
  if (nranks < 2 || nranks > kMaxOneHopRanks || !has_mesh) return;
  most_bytes_ = UINT32_MAX;
  for (int k = 1; k < nranks; ++k) {
    Peer peer;
    peer.rank = (rank + k) % nranks;
    peer.endpoint = links->At(peer.rank, 0);
    polls_in_memory_ &= peer.endpoint->limits().shares_memory;
    most_bytes_ = std::min<size_t>(most_bytes_, peer.endpoint->limits().short_bytes);
    peers_.push_back(peer);
  }
}

bool Express::Takes(const ScheduleParams& params, const Work& work) const {
  if (params.algorithm != Algorithm::kOneHop || most_bytes_ == 0) return false;
  if (params.kind != CollectiveKind::kAllreduce) return params.kind == CollectiveKind::kBarrier;
  return params.count * params.element_bytes <= most_bytes_ && work.segments == nullptr &&
         work.custom.function == nullptr && !work.custom.scales && work.device->host_accessible();
}

void Express::Start(const ScheduleParams& params, const Work* work) {
  work_ = work;
  const bool is_barrier = params.kind == CollectiveKind::kBarrier;
  bytes_ = is_barrier ? 0 : static_cast<uint32_t>(params.count * params.element_bytes);
  StartAgain();
}

void Express::StartAgain() {
  for (Peer& peer : peers_) peer.sent = peer.came = false;
  unsent_ = missing_ = nranks_ - 1;
}

Status Express::Progress(bool* moved) {
  if (unsent_ > 0) ANNULUS_RETURN_IF_ERROR(SendAll(moved));
  const int polls = polls_in_memory_ ? polls_ : 1;
  for (int poll = 0; poll < polls && missing_ > 0; ++poll) ANNULUS_RETURN_IF_ERROR(ReceiveAll(moved));
  if (done()) Finish();
  return Status();
}

Status Express::SendAll(bool* moved) {
  const Tag tag = PackTag(work_->call, {static_cast<uint32_t>(rank_), 0, 0});
  for (Peer& peer : peers_) {
    if (peer.sent) continue;
    Status sent = peer.endpoint->SendShort(tag, work_->input, bytes_);
    if (sent.would_block()) continue;
    ANNULUS_RETURN_IF_ERROR(std::move(sent));
    peer.sent = *moved = true;
    --unsent_;
    work_->monitor->Sent(peer.rank, bytes_);
  }
  return Status();
}

Status Express::ReceiveAll(bool* moved) {
  for (Peer& peer : peers_) {
    Endpoint::ShortSlice slice;
    if (peer.came || !peer.endpoint->PeekShort(&slice)) continue;
    ANNULUS_RETURN_IF_ERROR(Check(peer, slice));
    peer.data = slice.data;
    peer.came = *moved = true;
    --missing_;
    work_->monitor->Received(peer.rank, bytes_);
  }
  return Status();
}

Status Express::Check(const Peer& peer, const Endpoint::ShortSlice& slice) const {
  const Tag expected = PackTag(work_->call, {static_cast<uint32_t>(peer.rank), 0, 0});
  if (slice.tag != expected) return ExplainTag(expected, slice.tag, peer.rank);
  if (slice.data != nullptr && slice.bytes == bytes_) return Status();
  return {Code::kProtocol,
          "rank " + std::to_string(peer.rank) + " sent a slice of " + std::to_string(slice.bytes) + " bytes where " +
              std::to_string(bytes_) + " belong",
          peer.rank, 0};
}

void Express::Finish() {
  if (bytes_ > 0) Fold();
  for (Peer& peer : peers_) peer.endpoint->TakeShort();
}

void Express::Fold() {
  SliceOp op;
  op.type = work_->type;
  op.op = work_->op;
  op.divisor = work_->divisor;
  op.num_sources = nranks_;
  if (nranks_ == 2) {  // Two operands give the same bits in any order, so the chunks need not be told apart.
    op.inline_src[0] = work_->input;
    op.inline_src[1] = peers_[0].data;
    op.dst[0] = work_->output;
    op.count = work_->call.count;
    return RunOnHost(op);
  }
  sources_[rank_] = work_->input;
  for (const Peer& peer : peers_) sources_[peer.rank] = peer.data;
  for (int chunk = 0; chunk < nranks_; ++chunk) {
    const size_t offset = ChunkBegin(work_->call.count, nranks_, chunk) * work_->element_bytes;
    for (int k = 0; k < nranks_; ++k) ordered_[k] = sources_[(chunk + 1 + k) % nranks_] + offset;
    op.src = ordered_.data();
    op.dst[0] = work_->output + offset;
    op.count = ChunkElements(work_->call.count, nranks_, chunk);
    RunOnHost(op);
  }
}

int Express::AwaitedPeer() const {
  for (const Peer& peer : peers_) {
    if (!peer.sent || !peer.came) return peer.rank;
  }
  return -1;
}

bool Express::WaitsFor(const Endpoint* endpoint) const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [endpoint](const Peer& peer) { return peer.endpoint == endpoint && !(peer.sent && peer.came); });
}

}  // namespace annulus
