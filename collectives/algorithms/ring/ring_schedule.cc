#include "collectives/algorithms/ring/ring_schedule.h"

namespace annulus {

AnyRingSchedule MakeRingSchedule(const ScheduleParams& params, int channel) {
  if (params.nranks == 1) return LocalSchedule(params, channel);
  if (params.kind == CollectiveKind::kBarrier) return TokenSchedule(params, channel);
  if (IsChain(params.kind)) return ChainSchedule(params, channel);
  return RingSchedule(params, channel);
}

RingSchedule::RingSchedule(const ScheduleParams& params, int channel) : ChunkSchedule(params), channel_(channel) {
  phases_ = IsAllreduce(p_.kind) ? 2 * p_.nranks - 1 : p_.nranks;
  slices_ = SlicesOfChannel(Slices(), p_.channels, channel);
  size_ = slices_ * phases_;
}

// Rank r is the k-th on the path of chunk c when r = c + 1 + k (allgather: r = c + k).
bool RingSchedule::At(size_t index, Step* step) const {
  Reset(step);
  const Position at = Locate(index, phases_, slices_);
  const int n = p_.nranks;
  const int k = at.phase;
  const bool gather_only = IsAllgather(p_.kind);
  if (!Place(Ring(p_.rank - k - (gather_only ? 0 : 1)), SliceOf(at), step)) return false;
  if (k > 0) step->recv_from = Ring(p_.rank - 1);
  if (k < phases_ - 1) step->send_to = Ring(p_.rank + 1);
  if (gather_only) {
    step->store = true;
    return true;
  }
  step->reduce = k > 0 && k < n;
  step->finish = k == n - 1;
  step->store = k >= n - 1;
  return true;
}

ChainSchedule::ChainSchedule(const ScheduleParams& params, int channel) : ChunkSchedule(params), channel_(channel) {
  size_ = SlicesOfChannel(Slices(), p_.channels, channel);
}

// Broadcast runs root, root + 1, ...; reduce runs root + 1, ..., root.
bool ChainSchedule::At(size_t index, Step* step) const {
  Reset(step);
  if (!Place(0, index * p_.channels + channel_, step)) return false;
  const bool broadcast = p_.kind == CollectiveKind::kBroadcast;
  const int position = Ring(p_.rank - p_.root - (broadcast ? 0 : 1));
  const bool last = position == p_.nranks - 1;
  if (position > 0) step->recv_from = Ring(p_.rank - 1);
  if (!last) step->send_to = Ring(p_.rank + 1);
  step->reduce = !broadcast && position > 0;
  step->store = broadcast || last;
  step->finish = !broadcast && last;
  return true;
}

TokenSchedule::TokenSchedule(const ScheduleParams& params, int channel) : ChunkSchedule(params) {
  size_ = channel == 0 ? 2 : 0;
}

// A token goes round twice: after the first round the last rank knows that all have entered, after the second everyone
// does.
bool TokenSchedule::At(size_t index, Step* step) const {
  Reset(step);
  const bool first_round = index == 0;
  const bool first_rank = p_.rank == 0;
  const bool last_rank = p_.rank == p_.nranks - 1;
  if (!(first_rank && first_round)) step->recv_from = Ring(p_.rank - 1);
  if (first_round || !last_rank) step->send_to = Ring(p_.rank + 1);
  return true;
}

LocalSchedule::LocalSchedule(const ScheduleParams& params, int channel) : ChunkSchedule(params) {
  size_ = channel == 0 && p_.kind != CollectiveKind::kBarrier ? 1 : 0;
}

bool LocalSchedule::At(size_t /*index*/, Step* step) const {
  Reset(step);
  step->store = true;
  step->finish = Reduces(p_.kind);
  step->bytes = ChunkElements(0) * p_.element_bytes;
  step->input_offset = IsReduceScatter(p_.kind) ? ChunkBegin(0) * p_.element_bytes : 0;
  step->output_offset = IsAllgather(p_.kind) ? ChunkBegin(0) * p_.element_bytes : 0;
  return true;
}

}  // namespace annulus
