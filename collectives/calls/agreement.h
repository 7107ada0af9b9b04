// Agreement: what every rank tells the others of its call, or its group of calls, before any data moves, and what all
// conclude from it. The conclusion is a function of all descriptions alone, so it is the same on all ranks.
//
// Where some ranks give the counts that others must match (gatherv, scatterv, alltoallv), each rank adds up what it
// sends minus what it receives, over pairs of ranks, in three sums with different weights. Over all ranks each of them
// is 0 if all counts match. If one pair does not, the three sums tell which.
//
// Threads: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "collectives/calls/call_arguments.h"

namespace annulus {

struct CallDescription {
  uint32_t calls = 0;  // Collectives in the group; 1: it may also be a call alone.
  uint32_t units = 0;  // Digest of what is queued for them, once allreduces are combined.
  // The first call, as Call has it.
  CollectiveKind kind = CollectiveKind::kNone;
  DataType type{};
  ReduceOp op{};
  uint8_t refusal = 0;  // Code of the reason for which this rank refused its call; 0: it did not.
  int32_t root = 0;
  uint64_t count = 0;
  uint64_t digest = 0;                  // Digest of all calls.
  std::array<uint8_t, 8> parts{};       // Short digests of an eighth each: of the calls, or of a call's counts.
  std::array<uint64_t, 3> unmatched{};  // The three sums.

  bool operator==(const CallDescription&) const = default;
};
// Numbers of an agreement that hold an encoded description.
constexpr size_t kDescriptionWords = 8;

// Describes the collectives among `calls`, which are complete and valid on this rank. `units` has, for each collective
// that is queued for them, the number of allreduces that it combines.
CallDescription Describe(std::span<const CallArguments> calls, std::span<const size_t> units, int rank, int nranks);
// Describes a call of that kind, alone or one of a group of `calls`, that this rank refused.
CallDescription DescribeRefusal(Code why, CollectiveKind kind, size_t calls);

// Writes a description to the beginning of the numbers of an agreement (Requests::MakeAgreement).
void Put(const CallDescription& description, std::span<size_t> numbers);

// Compares the descriptions of all ranks, which follow this rank's own in `numbers`. `sequence` is the agreement's.
// Errors: kMismatch that names the ranks that differ, or refused their calls.
Status CheckAgreement(std::span<const size_t> numbers, int nranks, uint64_t sequence);

}  // namespace annulus
