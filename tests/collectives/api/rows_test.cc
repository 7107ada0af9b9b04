// Rows and annulus.h: reduce_types.inc has the same element types, collectives.inc the same kinds of calls.
#include <annulus.h>
#include <gtest/gtest.h>

#include <string>

#include "collectives/core/collective.h"
#include "cuda_kernels/reduce_types.h"

namespace annulus {
namespace {

// Does not compile when a row is no constant of annulus.h, or (-Wswitch) a constant has no row.
constexpr bool HasRow(annulus_type_t type) {
  switch (type) {
#define ANNULUS_ELEMENT_TYPE(Name, name, NAME, ...) case ANNULUS_##NAME:
#define ANNULUS_DERIVED_TYPE ANNULUS_ELEMENT_TYPE
#include "cuda_kernels/reduce_types.inc"
#undef ANNULUS_ELEMENT_TYPE
    return true;
    case ANNULUS_TYPE_LAST:
      break;
  }
  return false;
}

constexpr bool HasRow(annulus_kind_t kind) {
  switch (kind) {
#define ANNULUS_INTERNAL_COLLECTIVE(...)
#define ANNULUS_COLLECTIVE(Name, name, NAME, ...) case ANNULUS_CALL_##NAME:
#include "collectives/core/collectives.inc"
#undef ANNULUS_COLLECTIVE
#undef ANNULUS_INTERNAL_COLLECTIVE
    return true;
    case ANNULUS_CALL_LAST:
      break;
  }
  return false;
}

TEST(RowsTest, EveryRowIsATypeOfTheHeaderWithItsSize) {
  for (int number = 0; number < kNumDataTypes; ++number) {
    const auto type = static_cast<annulus_type_t>(number);
    EXPECT_TRUE(HasRow(type)) << number;
    EXPECT_EQ(annulus_type_bytes(type), kTypeRows[number].bytes) << kTypeRows[number].name;
  }
  const auto next = static_cast<annulus_type_t>(kNumDataTypes);
  EXPECT_FALSE(HasRow(next));
  EXPECT_EQ(annulus_type_bytes(next), 0u);
}

TEST(RowsTest, ANumberThatIsNoTypeHasNoSize) {
  EXPECT_EQ(TypeBytes(static_cast<DataType>(kNumDataTypes)), 0u);
  EXPECT_STREQ(TypeName(static_cast<DataType>(255)), "unknown type");
}

TEST(RowsTest, EveryCallOfTheHeaderHasARow) {
  for (int number = 0; number <= static_cast<int>(kLastKind); ++number) {
    const auto kind = static_cast<CollectiveKind>(number);
    const bool internal =
        kind == CollectiveKind::kNone || kind == CollectiveKind::kAllreduceGroup || kind == CollectiveKind::kAgreement;
    EXPECT_EQ(HasRow(static_cast<annulus_kind_t>(number)), !internal) << KindName(kind);
  }
}

// The rows, beside what the kinds are.
TEST(RowsTest, KindsDoWhatTheirNamesSay) {
  using enum CollectiveKind;
  for (const kinds::KindRow& row : kinds::kRows) {
    const CollectiveKind kind = row.kind;
    const bool gathers = IsGather(kind) || IsAllgather(kind);
    const bool scatters = IsScatter(kind) || IsReduceScatter(kind);
    EXPECT_EQ(Reduces(kind), IsAllreduce(kind) || IsReduceScatter(kind) || kind == kReduce) << row.name;
    EXPECT_EQ(HasRoot(kind), IsGather(kind) || IsScatter(kind) || kind == kBroadcast || kind == kReduce) << row.name;
    EXPECT_EQ(IsDirect(kind), IsGather(kind) || IsScatter(kind) || IsAlltoall(kind)) << row.name;
    EXPECT_EQ(IsMessage(kind), kind == kSend || kind == kRecv) << row.name;
    EXPECT_EQ(HasVariableParts(kind), *row.name != 0 && std::string(row.name).back() == 'v' && kind != kRecv)
        << row.name;
    EXPECT_EQ(SendHolds(kind, true) == Holding::kParts, scatters || IsAlltoall(kind)) << row.name;
    EXPECT_EQ(RecvHolds(kind, true) == Holding::kParts, gathers || IsAlltoall(kind)) << row.name;
    if (HasRoot(kind)) continue;
    EXPECT_EQ(SendHolds(kind, true), SendHolds(kind, false)) << row.name;
    EXPECT_EQ(RecvHolds(kind, true), RecvHolds(kind, false)) << row.name;
  }
  EXPECT_FALSE(Reduces(static_cast<CollectiveKind>(255)));
  EXPECT_STREQ(KindName(static_cast<CollectiveKind>(255)), "unknown collective");
}

}  // namespace
}  // namespace annulus
