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

static Algorithm AlgorithmOf(const PlanInput& input, const PlanSettings& settings, const AlgorithmChoice& choice) {
  const Call& call = input.call;
  if (IsDirect(call.kind)) return choice.At(call.kind, HasVariableParts(call.kind) ? 0 : SentAtOnce(input));
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
