// Plan: the algorithm and slice size of a collective. Pure, and the same on every rank: it depends only on the call,
// nranks and settings that all ranks share.
#pragma once

#include <cstddef>

#include "collectives/choice/algorithm_choice.h"
#include "collectives/core/plan_settings.h"
#include "collectives/core/schedule.h"

namespace annulus {

// One rank's part in a collective. Parts as in ScheduleParams.
struct PlanInput {
  Call call;
  size_t element_bytes = 1;
  int rank = 0;
  int nranks = 1;
  const Part* input_parts = nullptr;
  const Part* output_parts = nullptr;
  size_t tensor_count = 0;  // kAllreduceGroup: elements of one tensor; all tensors have the same order of addition.
};

// Adds to `input` the algorithm, slice size, round and channels: everything but round_ends. `choice` must be made for
// the same number of ranks and settings.
ScheduleParams MakePlan(const PlanInput& input, const PlanSettings& settings, const AlgorithmChoice& choice);

// The same for one call only.
ScheduleParams MakePlan(const PlanInput& input, const PlanSettings& settings, const Topology& topology);

// Whether allreduces of `bytes`, alone or in a group, add in an order that is not the ring's (docs/determinism.md).
// User-defined functions keep the order of the ring.
bool HasOwnOrderInGroups(const AlgorithmChoice& choice, ReduceOp op, size_t bytes);

// Whether an allreduce of `bytes` adds in an order that is not the ring's when it is called alone, but not in a group.
bool HasOwnOrderAlone(const AlgorithmChoice& choice, ReduceOp op, size_t bytes);

// The reason why a call does not use `algorithm` although calls of its size do; null when it does. It lies in the
// call's type or operation.
const char* TypeWhyNot(const PlanInput& input, const PlanSettings& settings, Algorithm algorithm);

// The size that decides a call's algorithm, in bytes.
size_t SentAtOnce(const PlanInput& input);

}  // namespace annulus
