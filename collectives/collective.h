// Call: the identity of one collective call. It heads every slice, so that ranks which disagree find out at the first
// one.
#pragma once

#include <cstdint>

#include "cuda_kernels/reduce_types.h"
#include "transport/transport.h"

namespace annulus {

enum class CollectiveKind : uint8_t {
  kNone = 0,
  kAllreduce = 1,
  kReduceScatter = 2,
  kAllgather = 3,
  kBroadcast = 4,
  kReduce = 5,
  kBarrier = 6,
};

constexpr const char* KindName(CollectiveKind kind) {
  constexpr const char* kNames[] = {"", "allreduce", "reduce_scatter", "allgather", "broadcast", "reduce", "barrier"};
  return static_cast<int>(kind) <= static_cast<int>(CollectiveKind::kBarrier) ? kNames[static_cast<int>(kind)]
                                                                              : "unknown collective";
}

// What all ranks must agree on. Fields that a kind does not use are zero.
struct Call {
  uint64_t sequence = 0;  // Number of the collective on its communicator, from 1.
  CollectiveKind kind = CollectiveKind::kNone;
  DataType type{};
  ReduceOp op{};
  int32_t root = 0;
  uint64_t count = 0;  // As the user gave it.
  bool operator==(const Call&) const = default;
};

}  // namespace annulus
