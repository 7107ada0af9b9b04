// Limits of the jobs and calls that use log steps. log_steps and log_gather use each other's limits.
//
// Threads: pure functions.
#pragma once

#include <cstddef>

#include "collectives/algorithms/row.h"

namespace annulus {

// Whether some calls of the job use log steps, or a gather in log steps, so that links and memory are needed for them.
bool HasLogSteps(const AlgorithmJob& job);
bool HasLogGather(const AlgorithmJob& job);

// Whether ranks of one host use log steps because sockets connect them.
bool HasNearLogSteps(const AlgorithmJob& job);

// Largest call that uses log steps, in bytes. Between ranks of one host they stay faster than the ring a little longer.
size_t MostLogBytes(const AlgorithmJob& job);

// Largest call that uses a gather, in bytes.
size_t MostGatherBytes(const AlgorithmJob& job);

// Largest message of an allreduce in log steps, in bytes; its chunks are padded to equal size.
size_t LogMessageBytes(int nranks, size_t count, size_t element_bytes);

}  // namespace annulus
