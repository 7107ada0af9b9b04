#include "collectives/core/plan_settings.h"

#include <algorithm>

namespace annulus {
namespace {

constexpr size_t kSliceAlignment = 64;  // A cache line: slices never split an element.
// Smallest slice when none is set: below it the per-slice cost (about 100 ns) shows against 16 KiB / 20 GB/s = 800 ns.
constexpr size_t kSmallestSliceBytes = 16 * 1024;
// The same for two ranks, where no hops overlap: a reduce of 64 KiB between far processors of an Intel Xeon took 7.7 us
// in slices of 16 KiB and takes 5.7, a broadcast of 32 KiB between near ones 3.7 and 3.3.
constexpr size_t kSmallestSliceOfTwoBytes = 32 * 1024;
// Slices per chunk when the size is chosen: enough for the hops of a chain, or of a long ring, to overlap.
constexpr size_t kSlicesPerChunk = 4;
// Most ranks for one slice per chunk: in so short a ring each rank always has a chunk to work on, and more slices only
// cost more.
constexpr int kOneSliceRanks = 4;
// Slice size of kDirect when none is set: sender and receiver work side by side on a message of several slices.
constexpr size_t kDirectSliceBytes = 64 * 1024;

size_t RoundUp(size_t bytes) { return (bytes + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment; }

}  // namespace

size_t SlotBytes(const PlanSettings& settings) {
  const size_t slice = settings.slice_bytes > 0 ? RoundUp(settings.slice_bytes) : settings.largest_slice_bytes;
  return std::max(slice, RoundUp(settings.small_bytes));
}

size_t DirectSliceBytes(const PlanSettings& settings) {
  return settings.slice_bytes > 0 ? RoundUp(settings.slice_bytes)
                                  : std::min(kDirectSliceBytes, settings.largest_slice_bytes);
}

size_t ChunkSliceBytes(CollectiveKind kind, int nranks, size_t chunk_bytes, const PlanSettings& settings) {
  if (settings.slice_bytes > 0) return RoundUp(settings.slice_bytes);
  const size_t per_chunk = nranks <= kOneSliceRanks && !HasRoot(kind) ? 1 : kSlicesPerChunk;
  const size_t slices = per_chunk * static_cast<size_t>(settings.channels);
  const size_t wanted = RoundUp((chunk_bytes + slices - 1) / slices);
  const size_t smallest = nranks == 2 ? kSmallestSliceOfTwoBytes : kSmallestSliceBytes;
  return std::clamp(wanted, std::min(smallest, settings.largest_slice_bytes), settings.largest_slice_bytes);
}

// A round of half the slots leaves the other half for slices of the next phase (schedule.h asks for one more than a
// round).
int RoundSlices(const PlanSettings& settings) { return std::max(1, settings.slots / 2); }

// schedule.h asks for more than two rounds; four let the next round start while the last one drains.
int WindowSteps(const PlanSettings& settings) { return 4 * RoundSlices(settings); }

// Small jobs have a link between every two ranks anyway, for the one-hop exchange.
bool HasMesh(int nranks, const PlanSettings& settings) {
  return nranks <= std::max(settings.mesh_ranks, kMaxOneHopRanks);
}

}  // namespace annulus
