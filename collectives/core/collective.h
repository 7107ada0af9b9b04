// Call: the identity of one collective call. Every slice starts with it, so that ranks which disagree notice at the
// first slice.
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
  kGather = 7,
  kScatter = 8,
  kAlltoall = 9,
  kAllgatherv = 10,
  kReduceScatterv = 11,
  kGatherv = 12,
  kScatterv = 13,
  kAlltoallv = 14,
  kSend = 15,  // On the wire, kSend stands for both ends of a message.
  kRecv = 16,
  kAllreduceGroup = 17,  // Several allreduces in one; count is their sum, root a digest of their counts.
};
constexpr CollectiveKind kLastKind = CollectiveKind::kAllreduceGroup;

constexpr const char* KindName(CollectiveKind kind) {
  constexpr const char* kNames[] = {
      "",        "allreduce", "reduce_scatter", "allgather", "broadcast",  "reduce",
      "barrier", "gather",    "scatter",        "alltoall",  "allgatherv", "reduce_scatterv",
      "gatherv", "scatterv",  "alltoallv",      "send",      "recv",       "allreduce group"};
  return kind <= kLastKind ? kNames[static_cast<int>(kind)] : "unknown collective";
}

constexpr bool IsAllreduce(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kAllreduceGroup;
}
constexpr bool IsAllgather(CollectiveKind kind) {
  return kind == CollectiveKind::kAllgather || kind == CollectiveKind::kAllgatherv;
}
constexpr bool IsReduceScatter(CollectiveKind kind) {
  return kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kReduceScatterv;
}
constexpr bool IsGather(CollectiveKind kind) {
  return kind == CollectiveKind::kGather || kind == CollectiveKind::kGatherv;
}
constexpr bool IsScatter(CollectiveKind kind) {
  return kind == CollectiveKind::kScatter || kind == CollectiveKind::kScatterv;
}
constexpr bool IsAlltoall(CollectiveKind kind) {
  return kind == CollectiveKind::kAlltoall || kind == CollectiveKind::kAlltoallv;
}

constexpr bool Reduces(CollectiveKind kind) {
  return IsAllreduce(kind) || kind == CollectiveKind::kReduce || IsReduceScatter(kind);
}
constexpr bool HasRoot(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce || IsGather(kind) || IsScatter(kind);
}
// Whether slices go straight from the rank that has them to the rank that wants them, without combining.
constexpr bool IsDirect(CollectiveKind kind) { return IsGather(kind) || IsScatter(kind) || IsAlltoall(kind); }
// Whether the ranks' parts may differ in size; the calls then carry no common count.
constexpr bool HasVariableParts(CollectiveKind kind) {
  return kind >= CollectiveKind::kAllgatherv && kind <= CollectiveKind::kAlltoallv;
}
constexpr bool IsMessage(CollectiveKind kind) { return kind == CollectiveKind::kSend || kind == CollectiveKind::kRecv; }

// What all ranks must agree on. Fields that a kind does not use are zero.
struct Call {
  uint64_t sequence = 0;  // Number of the collective on its communicator, from 1.
  CollectiveKind kind = CollectiveKind::kNone;
  DataType type{};
  ReduceOp op{};
  int32_t root = 0;
  uint64_t count = 0;  // The user's count; with variable parts their sum if all ranks know it, else 0.
  bool operator==(const Call&) const = default;
};

}  // namespace annulus
