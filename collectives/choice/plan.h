// Plan: which algorithm and slice size a collective uses. Pure, and the same on every rank: it depends on nothing but
// the call, nranks and settings that all ranks share.
#pragma once

#include <cstddef>

#include "collectives/choice/algorithm_choice.h"
#include "collectives/core/plan_settings.h"
#include "collectives/core/schedule.h"

namespace annulus {

// What a rank does of one collective. Parts as in ScheduleParams.
struct PlanInput {
  Call call;
  size_t element_bytes = 1;
  int rank = 0;
  int nranks = 1;
  const Part* input_parts = nullptr;
  const Part* output_parts = nullptr;
  size_t tensor_count = 0;  // kAllreduceGroup: of one of its tensors, which all go in two levels or none does.
};

// Completes it: algorithm, slice size, round and channels; all but round_ends. `choice` is made of the same nranks and
// settings.
ScheduleParams MakePlan(const PlanInput& input, const PlanSettings& settings, const AlgorithmChoice& choice);

// The same for one call only.
ScheduleParams MakePlan(const PlanInput& input, const PlanSettings& settings);

// Whether an allreduce of so many bytes, apart or in a group, goes in two levels: whose order of addition is not the
// ring's (docs/determinism.md). Functions of users keep the ring's order.
bool TakesTwoLevels(const AlgorithmChoice& choice, ReduceOp op, size_t bytes);

// Why a call does not go in that way although calls of its size do; null when it does. In one hop both of two ranks add
// all of a call, for which elements of one byte (float8) and functions of the user's take too long beyond small calls.
const char* TypeWhyNot(const PlanInput& input, const PlanSettings& settings, Algorithm algorithm);

// The size by which a call's algorithm is chosen.
size_t SentAtOnce(const PlanInput& input);

}  // namespace annulus
