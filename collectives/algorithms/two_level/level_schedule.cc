#include "collectives/algorithms/two_level/level_schedule.h"

#include <algorithm>

#include "base/check.h"

namespace annulus {
namespace {

int Modulo(int position, int size) { return (position % size + size) % size; }

}  // namespace

LevelSchedule::LevelSchedule(const ScheduleParams& params, int level) : ChunkSchedule(params), level_(level) {
  ANNULUS_CHECK(IsAllreduce(p_.kind) && p_.channels == 1 && p_.inner.size * p_.outer.size == p_.nranks);
  slices_ = Slices();
  batches_ = (slices_ + p_.round_slices - 1) / p_.round_slices;
  size_ = level_ == 0 ? 2 * slices_ * p_.nranks : slices_ * OuterPhases();
}

uint64_t LevelSchedule::BatchSlices(uint64_t batch) const {
  return std::min<uint64_t>(p_.round_slices, slices_ - batch * p_.round_slices);
}

// Steps of the inner level for a reduce-scatter, or an allgather, of that batch.
uint64_t LevelSchedule::HalfSteps(uint64_t batch) const {
  return static_cast<uint64_t>(p_.inner.size) * p_.outer.size * BatchSlices(batch);
}

// Steps of the inner level before the reduce-scatter of `batch`.
uint64_t LevelSchedule::StepsBeforeScatter(uint64_t batch) const {
  return batch == 0 ? 0 : (2 * batch - 1) * HalfSteps(0);
}

bool LevelSchedule::At(size_t index, Step* step) const {
  Reset(step);
  return level_ == 0 ? InnerAt(index, step) : OuterAt(index, step);
}

bool LevelSchedule::InnerAt(size_t index, Step* step) const {
  if (index < HalfSteps(0)) return InnerRingAt(index, 0, false, step);
  const uint64_t last = batches_ - 1;
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
bool LevelSchedule::InnerRingAt(uint64_t within, uint64_t batch, bool gathers, Step* step) const {
  const RankRing& ring = p_.inner;
  const uint64_t share_slices = BatchSlices(batch) * p_.outer.size;
  const uint64_t round_steps = static_cast<uint64_t>(p_.round_slices) * ring.size;
  const uint64_t first = within / round_steps * p_.round_slices;
  const uint64_t slices = std::min<uint64_t>(p_.round_slices, share_slices - first);
  const int k = static_cast<int>(within % round_steps / slices);
  const uint64_t slice = first + within % round_steps % slices;
  const int share = Modulo(ring.position - k - (gathers ? 0 : 1), ring.size);
  const uint32_t chunk = static_cast<uint32_t>(share * p_.outer.size + static_cast<int>(slice % p_.outer.size));
  if (!Place(chunk, batch * p_.round_slices + slice / p_.outer.size, step)) return false;
  if (k > 0) step->recv_from = ring.prev;
  if (k < ring.size - 1) step->send_to = ring.next;
  if (gathers) {
    step->store = k > 0;
    step->from_output = k == 0;
    if (k == 0) step->awaits = AllOuterSteps(batch);
  } else {
    step->reduce = k > 0;
    step->store = k == ring.size - 1;
  }
  return true;
}

// Steps of the outer level up to and including `batch`.
uint64_t LevelSchedule::AllOuterSteps(uint64_t batch) const {
  return OuterPhases() * std::min<uint64_t>((batch + 1) * p_.round_slices, slices_);
}

bool LevelSchedule::OuterAt(size_t index, Step* step) const {
  const RankRing& ring = p_.outer;
  const Position at = Locate(index, OuterPhases(), slices_);
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
    const uint64_t batch = at.slice / p_.round_slices;
    step->awaits = StepsBeforeScatter(batch) + HalfSteps(batch);
  }
  return true;
}

}  // namespace annulus
