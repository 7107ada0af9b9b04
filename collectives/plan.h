// Plan: which algorithm and slice size a collective uses. Pure, and the same on every rank: it depends on nothing but
// the call, nranks and settings that all ranks share.
#pragma once

#include <cstddef>

#include "collectives/schedule.h"

namespace annulus {

// Largest slice when none is set: with 8 slots a link's staging is 2 MiB per direction, and the slots in use at a time
// (recently used ones first) stay within a 1 MiB second-level cache.
constexpr size_t kLargestSliceBytes = 256 * 1024;
// Smallest slice when none is set: below it the per-slice cost (about 100 ns) shows against 16 KiB / 20 GB/s = 800 ns.
constexpr size_t kSmallestSliceBytes = 16 * 1024;

// Settings on which ranks must agree; compared when a communicator is created.
struct PlanSettings {
  size_t slice_bytes = 0;          // 0: chosen by message size.
  size_t small_bytes = 16 * 1024;  // Up to here, in bytes that one rank sends to another, the one-hop exchange is used.
  int channels = 1;
  int slots = 8;
  size_t largest_slice_bytes = kLargestSliceBytes;  // When chosen.
  int log_ranks = kMaxOneHopRanks + 1;  // From here on, small allreduces and barriers go in log steps. At least 2.
  int mesh_ranks = 64;  // Up to so many ranks, each has a link to every other, which IsDirect collectives need.
};

// The slot size that links need under these settings.
size_t SlotBytes(const PlanSettings& settings);

// The slice of everything that goes straight from one rank to another.
size_t DirectSliceBytes(const PlanSettings& settings);

// Steps that a pipeline must be able to keep in flight.
int WindowSteps(const PlanSettings& settings);

// The largest message of an allreduce in log steps; its chunks are padded to equal size.
size_t LogMessageBytes(int nranks, size_t count, size_t element_bytes);

// What a rank does of one collective. Parts as in ScheduleParams.
struct PlanInput {
  Call call;
  size_t element_bytes = 1;
  int rank = 0;
  int nranks = 1;
  const Part* input_parts = nullptr;
  const Part* output_parts = nullptr;
};

// Completes it: algorithm, slice size, round and channels; all but round_ends.
ScheduleParams MakePlan(const PlanInput& input, const PlanSettings& settings);

}  // namespace annulus
