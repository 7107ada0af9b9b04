#include "collectives/plan.h"

#include <algorithm>

namespace annulus {
namespace {

constexpr size_t kSliceAlignment = 64;  // A cache line: slices never split an element.
// Slices per chunk when the size is chosen: enough that the hops of the ring overlap.
constexpr size_t kSlicesPerChunk = 4;

size_t RoundUp(size_t bytes) { return (bytes + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment; }

size_t ChooseSlice(size_t chunk_bytes, const PlanSettings& settings) {
  if (settings.slice_bytes > 0) return RoundUp(settings.slice_bytes);
  const size_t wanted = RoundUp(chunk_bytes / (kSlicesPerChunk * settings.channels));
  return std::clamp(wanted, kSmallestSliceBytes, kLargestSliceBytes);
}

}  // namespace

size_t SlotBytes(const PlanSettings& settings) {
  const size_t slice = settings.slice_bytes > 0 ? RoundUp(settings.slice_bytes) : kLargestSliceBytes;
  return std::max(slice, RoundUp(settings.small_bytes));
}

// A round of half the slots leaves the other half for slices of the next phase (schedule.h asks for one more than a
// round).
static int RoundSlices(const PlanSettings& settings) { return std::max(1, settings.slots / 2); }

// schedule.h asks for two rounds; twice that lets the next round start while the last one drains.
int WindowSteps(const PlanSettings& settings) { return 4 * RoundSlices(settings); }

ScheduleParams MakePlan(const Call& call, size_t element_bytes, int rank, int nranks, const PlanSettings& settings) {
  ScheduleParams params;
  params.kind = call.kind;
  params.rank = rank;
  params.nranks = nranks;
  params.root = call.root;
  params.count = call.count;
  params.element_bytes = element_bytes;
  const bool one_hop = nranks > 1 && nranks <= kMaxOneHopRanks && call.count * element_bytes <= settings.small_bytes;
  params.algorithm = one_hop ? Algorithm::kOneHop : Algorithm::kRing;
  const size_t chunk = call.kind == CollectiveKind::kAllreduce ? ChunkElements(call.count, nranks, 0) : call.count;
  params.slice_bytes = ChooseSlice(chunk * element_bytes, settings);
  params.round_slices = RoundSlices(settings);
  params.channels = settings.channels;
  return params;
}

}  // namespace annulus
