// Call: the identity of one collective call. Every slice starts with it, so that ranks which disagree notice at the
// first slice.
#pragma once

#include <cstdint>

#include "cuda_kernels/reduce_types.h"
#include "transport/transport.h"

namespace annulus {

// Each kind is a row of collectives.inc.
enum class CollectiveKind : uint8_t {
#define ANNULUS_COLLECTIVE(Name, name, NAME, number, ...) k##Name = number,
#define ANNULUS_INTERNAL_COLLECTIVE(Name, name, number, ...) k##Name = number,
#include "collectives/core/collectives.inc"
#undef ANNULUS_INTERNAL_COLLECTIVE
#undef ANNULUS_COLLECTIVE
};

namespace kinds {

enum KindTraits : uint8_t { kReduces = 1, kHasRoot = 2, kIsDirect = 4, kHasVariableParts = 8, kIsMessage = 16 };

// What a buffer holds on one rank: nothing, this rank's data alone, or a part for every rank.
enum class Holding : uint8_t { kNothing, kOwn, kParts };

struct KindRow {
  CollectiveKind kind;
  const char* name;
  uint8_t traits;
  Holding send[2];  // On the root, on the others.
  Holding recv[2];
};

// By number.
inline constexpr KindRow kRows[] = {
#define ANNULUS_INTERNAL_COLLECTIVE(Name, name, number, traits, send, others_send, recv, others_recv) \
  {CollectiveKind::k##Name, name, traits, {Holding::send, Holding::others_send}, {Holding::recv, Holding::others_recv}},
#define ANNULUS_COLLECTIVE(Name, name, NAME, number, ...) ANNULUS_INTERNAL_COLLECTIVE(Name, name, number, __VA_ARGS__)
#include "collectives/core/collectives.inc"
#undef ANNULUS_COLLECTIVE
#undef ANNULUS_INTERNAL_COLLECTIVE
};
constexpr int kNumRows = sizeof kRows / sizeof *kRows;

// Bit `number` says whether the kind has the trait.
constexpr uint64_t KindsWith(KindTraits trait) {
  uint64_t kinds = 0;
  for (const KindRow& row : kRows) kinds |= uint64_t{(row.traits & trait) != 0} << static_cast<int>(row.kind);
  return kinds;
}

template <KindTraits kTrait>
constexpr bool Has(CollectiveKind kind) {
  constexpr uint64_t kKinds = KindsWith(kTrait);
  return static_cast<int>(kind) < kNumRows && (kKinds >> static_cast<int>(kind) & 1) != 0;
}

static_assert(kNumRows <= 64 && [] {
  for (int i = 0; i < kNumRows; ++i) {
    if (static_cast<int>(kRows[i].kind) != i) return false;
  }
  return true;
}());

}  // namespace kinds

constexpr CollectiveKind kLastKind = kinds::kRows[kinds::kNumRows - 1].kind;

constexpr const char* KindName(CollectiveKind kind) {
  return kind <= kLastKind ? kinds::kRows[static_cast<int>(kind)].name : "unknown collective";
}

using kinds::Holding;
// What sendbuf and recvbuf hold on the root, or on any other rank. For a kind up to kLastKind.
constexpr Holding SendHolds(CollectiveKind kind, bool at_root) {
  return kinds::kRows[static_cast<int>(kind)].send[at_root ? 0 : 1];
}
constexpr Holding RecvHolds(CollectiveKind kind, bool at_root) {
  return kinds::kRows[static_cast<int>(kind)].recv[at_root ? 0 : 1];
}

constexpr bool IsAllreduce(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kAllreduceGroup;
}
constexpr bool IsAllgather(CollectiveKind kind) {
  return kind == CollectiveKind::kAllgather || kind == CollectiveKind::kAllgatherv ||
         kind == CollectiveKind::kAgreement;
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

constexpr bool Reduces(CollectiveKind kind) { return kinds::Has<kinds::kReduces>(kind); }
constexpr bool HasRoot(CollectiveKind kind) { return kinds::Has<kinds::kHasRoot>(kind); }
// Whether slices go straight from the rank that has them to the rank that wants them, without combining.
constexpr bool IsDirect(CollectiveKind kind) { return kinds::Has<kinds::kIsDirect>(kind); }
// Whether the ranks' parts may differ in size; the calls then carry no common count.
constexpr bool HasVariableParts(CollectiveKind kind) { return kinds::Has<kinds::kHasVariableParts>(kind); }
// Whether the ranks' parts may differ in size, and all ranks give the sizes of all parts.
constexpr bool HasCommonCounts(CollectiveKind kind) { return HasVariableParts(kind) && !IsDirect(kind); }
constexpr bool IsMessage(CollectiveKind kind) { return kinds::Has<kinds::kIsMessage>(kind); }

// What all ranks must agree on. Fields that a kind does not use are zero.
struct Call {
  uint64_t sequence = 0;  // Number of the collective on its communicator, from 1.
  CollectiveKind kind = CollectiveKind::kNone;
  DataType type{};
  ReduceOp op{};
  int32_t root = 0;    // With common counts their digest, so that ranks that give others find out.
  uint64_t count = 0;  // The user's count; with variable parts their sum if all ranks know it, else 0.
  bool operator==(const Call&) const = default;
};

}  // namespace annulus
