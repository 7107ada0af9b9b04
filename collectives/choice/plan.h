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
  size_t tensor_count = 0;  // kAllreduceGroup: elements of one tensor; either all tensors use two levels or none does.
};

// Adds to `input` the algorithm, slice size, round and channels: everything but round_ends. `choice` must be made for
// the same number of ranks and settings.
ScheduleParams MakePlan(const PlanInput& input, const PlanSettings& settings, const AlgorithmChoice& choice);

// The same for one call only.
ScheduleParams MakePlan(const PlanInput& input, const PlanSettings& settings, const Topology& topology);

// Whether an allreduce of `bytes`, alone or in a group, uses two levels, whose order of addition is not the ring's
// (docs/determinism.md). User-defined functions keep the order of the ring.
bool TakesTwoLevels(const AlgorithmChoice& choice, ReduceOp op, size_t bytes);

// Whether an allreduce of `bytes` uses the tree, whose order is not the ring's either, when it is called alone. Those
// of a group never do.
bool TakesTree(const AlgorithmChoice& choice, ReduceOp op, size_t bytes);

// The reason why a call does not use `algorithm` although calls of its size do; null when it does. In one hop both of
// two ranks reduce the whole call. Beyond small calls that takes too long for elements of one byte (float8) and for
// user-defined functions.
const char* TypeWhyNot(const PlanInput& input, const PlanSettings& settings, Algorithm algorithm);

// The size that decides a call's algorithm, in bytes.
size_t SentAtOnce(const PlanInput& input);

}  // namespace annulus
