#include "collectives/plan.h"

#include <algorithm>

namespace annulus {
namespace {

constexpr size_t kSliceAlignment = 64;  // A cache line: slices never split an element.
// Slices per chunk when the size is chosen: enough that the hops of the ring overlap.
constexpr size_t kSlicesPerChunk = 4;

size_t RoundUp(size_t bytes) { return (bytes + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment; }

// The slice of kDirect when none is set: sender and receiver work on a message of some slices side by side.
constexpr size_t kDirectSliceBytes = 64 * 1024;

size_t LargestChunk(const PlanInput& input) {
  const Call& call = input.call;
  if (call.kind == CollectiveKind::kAllreduce) return ChunkElements(call.count, input.nranks, 0);
  if (!HasVariableParts(call.kind) && call.kind != CollectiveKind::kAllreduceGroup) return call.count;
  const Part* parts = IsAllgather(call.kind) ? input.output_parts : input.input_parts;
  const auto smaller = [](const Part& left, const Part& right) { return left.elements < right.elements; };
  return std::max_element(parts, parts + input.nranks, smaller)->elements;
}

size_t ChooseSlice(size_t chunk_bytes, const PlanSettings& settings) {
  if (settings.slice_bytes > 0) return RoundUp(settings.slice_bytes);
  const size_t wanted = RoundUp(chunk_bytes / (kSlicesPerChunk * settings.channels));
  return std::clamp(wanted, kSmallestSliceBytes, settings.largest_slice_bytes);
}

}  // namespace

size_t SlotBytes(const PlanSettings& settings) {
  const size_t slice = settings.slice_bytes > 0 ? RoundUp(settings.slice_bytes) : settings.largest_slice_bytes;
  return std::max(slice, RoundUp(settings.small_bytes));
}

size_t DirectSliceBytes(const PlanSettings& settings) {
  return settings.slice_bytes > 0 ? RoundUp(settings.slice_bytes)
                                  : std::min(kDirectSliceBytes, settings.largest_slice_bytes);
}

// A round of half the slots leaves the other half for slices of the next phase (schedule.h asks for one more than a
// round).
static int RoundSlices(const PlanSettings& settings) { return std::max(1, settings.slots / 2); }

// schedule.h asks for more than two rounds; four let the next round start while the last one drains.
int WindowSteps(const PlanSettings& settings) { return 4 * RoundSlices(settings); }

// A step of either half moves half of the chunks, or one more.
size_t LogMessageBytes(int nranks, size_t count, size_t element_bytes) {
  return static_cast<size_t>(nranks / 2 + 1) * ChunkElements(count, nranks, 0) * element_bytes;
}

// A small call: one hop between few ranks, log steps between many.
static Algorithm ChooseSmall(const PlanInput& input, const PlanSettings& settings) {
  const CollectiveKind kind = input.call.kind;
  const bool has_log_steps = kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kBarrier;
  if (has_log_steps && input.nranks >= settings.log_ranks &&
      LogMessageBytes(input.nranks, input.call.count, input.element_bytes) <= SlotBytes(settings)) {
    return Algorithm::kLogSteps;
  }
  return input.nranks <= kMaxOneHopRanks ? Algorithm::kOneHop : Algorithm::kRing;
}

ScheduleParams MakePlan(const PlanInput& input, const PlanSettings& settings) {
  const Call& call = input.call;
  ScheduleParams params;
  params.kind = call.kind;
  params.rank = input.rank;
  params.nranks = input.nranks;
  params.root = call.root;
  params.count = call.count;
  params.element_bytes = input.element_bytes;
  params.input_parts = input.input_parts;
  params.output_parts = input.output_parts;
  params.round_slices = RoundSlices(settings);
  params.channels = settings.channels;
  if (IsDirect(call.kind)) {
    // The same whatever the sizes of the parts, of which each rank knows its own only.
    params.algorithm = Algorithm::kDirect;
    params.slice_bytes = DirectSliceBytes(settings);
    return params;
  }
  const size_t chunk = LargestChunk(input) * input.element_bytes;
  const size_t sent_at_once = IsAllreduce(call.kind) ? call.count * input.element_bytes : chunk;
  const bool small = input.nranks > 1 && sent_at_once <= settings.small_bytes;
  params.algorithm = small ? ChooseSmall(input, settings) : Algorithm::kRing;
  params.slice_bytes = ChooseSlice(chunk, settings);
  return params;
}

}  // namespace annulus
