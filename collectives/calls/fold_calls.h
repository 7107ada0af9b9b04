// What the program of a fold has to know of calls in a stream (algorithms/shared_fold/fold_program.h).
//
// Threads: plain functions.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/algorithms/shared_fold/fold_program.h"
#include "collectives/calls/call_arguments.h"
#include "collectives/calls/request.h"

namespace annulus {

// Bytes of all parts together, the same on all ranks. The call, which is complete and valid, is of a kind that
// HasFoldProgram, and no exchange.
size_t FoldBytes(const CallArguments& call, int nranks);

// The mean of that for what the calls of a group become: its allreduces of one type and operation are one.
size_t MeanFoldBytes(std::span<const CallArguments> calls, int nranks);

// Describes such a call. *shape, which is empty, is filled where parts may differ in size, and the result refers to it.
FoldCall DescribeFold(const CallArguments& call, int rank, int nranks, FoldShape* shape);
// The same for allreduces that a request combines.
FoldCall DescribeFold(std::span<Request* const> members, FoldShape* shape);

}  // namespace annulus
