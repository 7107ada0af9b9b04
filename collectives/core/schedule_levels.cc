// The steps of Algorithm::kTwoLevel. Chunk j * hosts + c is share j's c-th: member j of every host sums share j over
// its host, and the ring of all members j sums chunk c of it over the hosts.
//
// Segment t is slices [t, t + 1) * round_slices of every chunk. The inner level's steps are
//   reduce-scatter of segment 0, of 1, allgather of 0, reduce-scatter of 2, allgather of 1, ..., allgather of the last,
// the outer level's an allreduce of each segment. So while one segment is between the hosts, the next is summed within
// them.
#include <algorithm>

#include "base/check.h"
#include "collectives/core/schedule.h"

namespace annulus {
namespace {

int Modulo(int position, int size) { return (position % size + size) % size; }

}  // namespace

void Schedule::SizeLevel() {
  ANNULUS_CHECK(IsAllreduce(p_.kind) && p_.channels == 1 && p_.inner.size * p_.outer.size == p_.nranks);
  segments_ = (channel_slices_ + p_.round_slices - 1) / p_.round_slices;
  phases_ = 2 * p_.outer.size - 1;
  size_ = channel_ == 0 ? 2 * channel_slices_ * p_.nranks : channel_slices_ * phases_;
}

uint64_t Schedule::SegmentSlices(uint64_t segment) const {
  return std::min<uint64_t>(p_.round_slices, channel_slices_ - segment * p_.round_slices);
}

// Steps of the inner level for a reduce-scatter, or an allgather, of that segment.
uint64_t Schedule::HalfSteps(uint64_t segment) const {
  return static_cast<uint64_t>(p_.inner.size) * p_.outer.size * SegmentSlices(segment);
}

// Of the inner level: what precedes the reduce-scatter of `segment`.
uint64_t Schedule::StepsBeforeScatter(uint64_t segment) const {
  return segment == 0 ? 0 : (2 * segment - 1) * HalfSteps(0);
}

bool Schedule::InnerAt(size_t index, Step* step) const {
  if (index < HalfSteps(0)) return InnerRingAt(index, 0, false, step);
  const uint64_t last = segments_ - 1;
  const uint64_t scattered = std::min((index / HalfSteps(0) + 1) / 2, last);
  uint64_t within = index - (last == 0 ? HalfSteps(0) : StepsBeforeScatter(scattered));
  if (last > 0) {
    if (within < HalfSteps(scattered)) return InnerRingAt(within, scattered, false, step);
    within -= HalfSteps(scattered);
    if (within < HalfSteps(scattered - 1)) return InnerRingAt(within, scattered - 1, true, step);
    within -= HalfSteps(scattered - 1);
  }
  return InnerRingAt(within, last, true, step);
}

// The slices of all chunks of a share, in rounds: phase by phase, and within a phase slice by slice.
bool Schedule::InnerRingAt(uint64_t within, uint64_t segment, bool gathers, Step* step) const {
  const RankRing& ring = p_.inner;
  const uint64_t share_slices = SegmentSlices(segment) * p_.outer.size;
  const uint64_t round_steps = static_cast<uint64_t>(p_.round_slices) * ring.size;
  const uint64_t first = within / round_steps * p_.round_slices;
  const uint64_t slices = std::min<uint64_t>(p_.round_slices, share_slices - first);
  const int k = static_cast<int>(within % round_steps / slices);
  const uint64_t slice = first + within % round_steps % slices;
  const int share = Modulo(ring.position - k - (gathers ? 0 : 1), ring.size);
  const uint32_t chunk = static_cast<uint32_t>(share * p_.outer.size + static_cast<int>(slice % p_.outer.size));
  if (!Place(chunk, segment * p_.round_slices + slice / p_.outer.size, step)) return false;
  if (k > 0) step->recv_from = ring.prev;
  if (k < ring.size - 1) step->send_to = ring.next;
  if (gathers) {
    step->store = k > 0;
    step->from_output = k == 0;
    if (k == 0) step->awaits = AllOuterSteps(segment);
  } else {
    step->reduce = k > 0;
    step->store = k == ring.size - 1;
  }
  return true;
}

// Of the outer level, up to and including `segment`.
uint64_t Schedule::AllOuterSteps(uint64_t segment) const {
  return (2 * static_cast<uint64_t>(p_.outer.size) - 1) *
         std::min<uint64_t>((segment + 1) * p_.round_slices, channel_slices_);
}

bool Schedule::OuterAt(size_t index, Step* step) const {
  const RankRing& ring = p_.outer;
  const Position at = Locate(index);
  const int k = at.phase;
  const uint32_t chunk =
      static_cast<uint32_t>(p_.inner.position * ring.size + Modulo(ring.position - k - 1, ring.size));
  if (!Place(chunk, at.slice, step)) return false;
  if (k > 0) step->recv_from = ring.prev;
  if (k < 2 * ring.size - 2) step->send_to = ring.next;
  step->reduce = k > 0 && k < ring.size;
  step->finish = k == ring.size - 1;
  step->store = k >= ring.size - 1;
  step->from_output = k < ring.size;
  if (step->from_output) {
    const uint64_t segment = at.slice / p_.round_slices;
    step->awaits = StepsBeforeScatter(segment) + HalfSteps(segment);
  }
  return true;
}

}  // namespace annulus
