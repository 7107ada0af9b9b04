#include "collectives/choice/plan.h"

#include <algorithm>

#include "collectives/algorithms/row.h"
#include "collectives/algorithms/table.h"

namespace annulus {
namespace {

size_t LargestChunk(const PlanInput& input) {
  const Call& call = input.call;
  if (call.kind == CollectiveKind::kAllreduce) return ChunkElements(call.count, input.nranks, 0);
  if (!HasVariableParts(call.kind) && call.kind != CollectiveKind::kAllreduceGroup) return call.count;
  const Part* parts = IsAllgather(call.kind) ? input.output_parts : input.input_parts;
  const auto smaller = [](const Part& left, const Part& right) { return left.elements < right.elements; };
  return std::max_element(parts, parts + input.nranks, smaller)->elements;
}

// Largest part with which a rank may be in one hop where parts may differ: one slice also for a rank that is not, since
// each rank knows only its own parts.
size_t MostInOneHop(const PlanInput& input, const PlanSettings& settings) {
  if (!IsDirect(input.call.kind) || !HasVariableParts(input.call.kind) || input.nranks > kMaxOneHopRanks) return 0;
  return std::min(settings.small_bytes, DirectSliceBytes(settings));
}

// Largest part that this rank has in its buffers, in bytes.
size_t LargestOwnPart(const PlanInput& input) {
  const bool at_root = input.rank == input.call.root;
  size_t largest = 0;
  const auto look = [&](Holding holding, const Part* parts) {
    for (int rank = 0; holding != Holding::kNothing && rank < input.nranks; ++rank)
      largest = std::max(largest, parts[rank].elements);
  };
  look(SendHolds(input.call.kind, at_root), input.input_parts);
  look(RecvHolds(input.call.kind, at_root), input.output_parts);
  return largest * input.element_bytes;
}

}  // namespace

size_t SentAtOnce(const PlanInput& input) {
  const size_t elements = IsAllreduce(input.call.kind) ? input.call.count : LargestChunk(input);
  return elements * input.element_bytes;
}

bool HasOwnOrderInGroups(const AlgorithmChoice& choice, ReduceOp op, size_t bytes) {
  return !IsUserOp(op) && RowOf(choice.At(CollectiveKind::kAllreduce, bytes)).serves_groups;
}

bool HasOwnOrderAlone(const AlgorithmChoice& choice, ReduceOp op, size_t bytes) {
  const Algorithm algorithm = choice.At(CollectiveKind::kAllreduce, bytes);
  return !IsUserOp(op) && OrderOf(algorithm) != Order::kRing && !RowOf(algorithm).serves_groups;
}

const char* TypeWhyNot(const PlanInput& input, const PlanSettings& settings, Algorithm algorithm) {
  const AlgorithmRow& row = RowOf(algorithm);
  if (row.type_why_not == nullptr || settings.algorithm == algorithm) return nullptr;
  return row.type_why_not(settings, input.call, input.element_bytes);
}

static Algorithm DirectAlgorithmOf(const PlanInput& input, const PlanSettings& settings,
                                   const AlgorithmChoice& choice) {
  if (!HasVariableParts(input.call.kind)) return choice.At(input.call.kind, SentAtOnce(input));
  const size_t largest = LargestOwnPart(input);
  return largest <= MostInOneHop(input, settings) ? choice.At(input.call.kind, largest) : Algorithm::kDirect;
}

static Algorithm AlgorithmOf(const PlanInput& input, const PlanSettings& settings, const AlgorithmChoice& choice) {
  const Call& call = input.call;
  if (IsDirect(call.kind)) return DirectAlgorithmOf(input, settings, choice);
  // A user-defined function may depend on the order, and not only in the last bits.
  const bool is_user_op = IsUserOp(call.op);
  const size_t sent = SentAtOnce(input);
  const size_t tensor_bytes = input.tensor_count * input.element_bytes;
  const bool is_group = call.kind == CollectiveKind::kAllreduceGroup;
  if (is_group && HasOwnOrderInGroups(choice, call.op, tensor_bytes))
    return choice.At(CollectiveKind::kAllreduce, tensor_bytes);
  const Algorithm algorithm = is_user_op ? choice.InRingOrderAt(call.kind, sent) : choice.At(call.kind, sent);
  return TypeWhyNot(input, settings, algorithm) == nullptr ? algorithm : Algorithm::kRing;
}

ScheduleParams MakePlan(const PlanInput& input, const PlanSettings& settings, const AlgorithmChoice& choice) {
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
  params.algorithm = AlgorithmOf(input, settings, choice);
  if (IsDirect(call.kind)) {
    // The same for all sizes of the parts: where they may differ, each rank knows only its own.
    params.slice_bytes = DirectSliceBytes(settings);
    params.one_hop_bytes = MostInOneHop(input, settings);
    return params;
  }
  params.slice_bytes = ChunkSliceBytes(call.kind, input.nranks, LargestChunk(input) * input.element_bytes, settings);
  const AlgorithmRow& row = RowOf(params.algorithm);
  if (row.stands_in_for_ring != nullptr) {
    const Algorithm next = choice.IfDeclined(params.algorithm, call.kind, SentAtOnce(input));
    if (TypeWhyNot(input, settings, next) == nullptr) params.if_declined = next;
  }
  if (row.add_params != nullptr) row.add_params(choice.topology(), &params);
  return params;
}

ScheduleParams MakePlan(const PlanInput& input, const PlanSettings& settings, const Topology& topology) {
  return MakePlan(input, settings, AlgorithmChoice(settings, topology));
}

}  // namespace annulus
