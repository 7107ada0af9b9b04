// The reducer against a scalar oracle, bit for bit: every type, operation, form and instruction set that this machine
// runs.
#include "collectives/reduce/reducer.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "tests/collectives/reduce/reducer_oracle.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

SliceOp MakeOp(DataType type, ReduceOp op, size_t count, uint32_t divisor) {
  SliceOp slice;
  slice.count = count;
  slice.type = type;
  slice.op = op;
  slice.divisor = divisor;
  return slice;
}

class ReducerTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

// All of them, or some for a sanitizer, which looks at what code does with memory, not with values.
std::vector<uint16_t> Representatives() {
  if (kSanitized) return {0x0001, 0x3c01, 0x7c01};
  std::vector<uint16_t> values = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff,
                                  0x7c00, 0xfc00, 0x7c01, 0x7e00, 0xfe55, 0x3c00, 0xbc00, 0x3c01,
                                  0x0080, 0x007f, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0x7fc0,
                                  0x3f80, 0xbf80, 0x3f81, 0x6400, 0x6401, 0x0200, 0x1400, 0x9400};
  std::mt19937 random(3);
  while (values.size() < 64) values.push_back(static_cast<uint16_t>(random()));
  return values;
}

// Runs `slice`, which has one destination of `expected`'s size, on every instruction set. The oracle takes far longer
// than the reducer, so it is asked once for all of them.
void CheckOnAllTargets(const SliceOp& slice, const Bytes& expected) {
  for (int64_t target : ReducerTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    std::memset(slice.dst[0], 0x5a, expected.size());
    RunOnHost(slice);
    hwy::SetSupportedTargetsForTest(0);
    if (std::memcmp(slice.dst[0], expected.data(), expected.size()) == 0) continue;
    for (size_t at = 0; at < expected.size(); ++at) {
      ASSERT_EQ(slice.dst[0][at], expected[at])
          << TypeName(slice.type) << " " << OpName(slice.op) << ", divisor " << slice.divisor << ", element "
          << at / TypeBytes(slice.type) << " on " << hwy::TargetName(target);
    }
  }
}

TEST(ReducerExhaustiveTest, SixteenBitFloatsAreRightForEveryValueWithEveryClass) {
  constexpr size_t kAll = 65536;
  Bytes all(kAll * 2), fixed(kAll * 2), result(kAll * 2), expected(kAll * 2);
  for (size_t i = 0; i < kAll; ++i) Put(all.data(), i, static_cast<uint16_t>(i));
  for (DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    for (uint16_t other : Representatives()) {
      SCOPED_TRACE(testing::Message() << "element i is i and " << other);
      for (size_t i = 0; i < kAll; ++i) Put(fixed.data(), i, other);
      for (int op = 0; op <= static_cast<int>(ReduceOp::kAvg); ++op) {
        SliceOp slice = MakeOp(type, static_cast<ReduceOp>(op), kAll, op == static_cast<int>(ReduceOp::kAvg) ? 3 : 0);
        slice.dst[0] = result.data();
        slice.inline_src[0] = all.data();
        slice.inline_src[1] = fixed.data();
        slice.num_sources = 2;
        for (size_t i = 0; i < kAll; ++i)
          OracleStep(type, slice.op, slice.divisor, all.data(), fixed.data(), expected.data(), i);
        CheckOnAllTargets(slice, expected);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Every pair of values, in both places of the pair.
void CheckAllPairs(DataType type, ReduceOp op, uint32_t divisor) {
  constexpr size_t kValues = 256;
  constexpr size_t kPairs = kValues * kValues;
  Bytes left(kPairs), right(kPairs), result(kPairs), expected(kPairs);
  for (size_t i = 0; i < kPairs; ++i) {
    left[i] = static_cast<std::byte>(i / kValues);
    right[i] = static_cast<std::byte>(i % kValues);
    OracleStep(type, op, divisor, left.data(), right.data(), expected.data(), i);
  }
  SliceOp slice = MakeOp(type, op, kPairs, divisor);
  slice.dst[0] = result.data();
  slice.inline_src[0] = left.data();
  slice.inline_src[1] = right.data();
  slice.num_sources = 2;
  CheckOnAllTargets(slice, expected);
}

TEST(ReducerExhaustiveTest, EightBitTypesAreRightForEveryPairOfValues) {
  for (DataType type : {DataType::kInt8, DataType::kUint8, DataType::kFloat8E4M3, DataType::kFloat8E5M2}) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax}) {
      CheckAllPairs(type, op, 0);
      if (HasFatalFailure()) return;
    }
    for (ReduceOp op : {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) {
      if (CanReduce(type, op)) CheckAllPairs(type, op, 0);
    }
    // 1 does not divide; beyond 255 every quotient of a byte is 0.
    for (uint32_t divisor : {0, 1, 2, 3, 5, 7, 10, 127, 128, 129, 200, 254, 255, 256, 257, 1000, 100000}) {
      CheckAllPairs(type, ReduceOp::kAvg, divisor);
      if (HasFatalFailure()) return;
    }
  }
}

// Not only what the reducer and the oracle agree on: values from the specification and from decision 15.
TEST_P(ReducerTest, EightBitFloatsSaturateAndHaveOneNaN) {
  struct Example {
    DataType type;
    ReduceOp op;
    uint8_t a, b, result;
  };
  constexpr DataType k4 = DataType::kFloat8E4M3;
  constexpr DataType k5 = DataType::kFloat8E5M2;
  const Example examples[] = {
      {k4, ReduceOp::kSum, 0x38, 0x38, 0x40},   // 1 + 1 = 2
      {k4, ReduceOp::kSum, 0x7e, 0x58, 0x7e},   // 448 + 16 = 464, a tie with 480, which is no number: 448
      {k4, ReduceOp::kSum, 0x7e, 0x7e, 0x7e},   // 448 + 448 saturates
      {k4, ReduceOp::kProd, 0xfe, 0x7e, 0xfe},  // -448 * 448 saturates
      {k4, ReduceOp::kSum, 0xff, 0x00, 0x7f},   // NaN loses its sign
      {k4, ReduceOp::kMax, 0x7f, 0x38, 0x7f},   // NaN wins
      {k4, ReduceOp::kSum, 0x01, 0x01, 0x02},   // Subnormals: 2^-9 + 2^-9
      {k4, ReduceOp::kMin, 0x00, 0x80, 0x80},   // -0 before +0
      {k5, ReduceOp::kSum, 0x3c, 0x3c, 0x40},   // 1 + 1 = 2
      {k5, ReduceOp::kSum, 0x7b, 0x7b, 0x7b},   // 57344 + 57344 saturates
      {k5, ReduceOp::kSum, 0x7c, 0x3c, 0x7b},   // An infinite result saturates too
      {k5, ReduceOp::kSum, 0x7c, 0xfc, 0x7e},   // inf - inf is NaN
      {k5, ReduceOp::kMin, 0xfc, 0x3c, 0xfb},   // -inf is the least, and saturates
      {k5, ReduceOp::kProd, 0xfd, 0x3c, 0x7e},  // Every NaN becomes the one
  };
  for (const Example& e : examples) {
    uint8_t result = 0;
    SliceOp slice = MakeOp(e.type, e.op, 1, 0);
    slice.dst[0] = reinterpret_cast<std::byte*>(&result);
    slice.inline_src[0] = reinterpret_cast<const std::byte*>(&e.a);
    slice.inline_src[1] = reinterpret_cast<const std::byte*>(&e.b);
    slice.num_sources = 2;
    RunOnHost(slice);
    EXPECT_EQ(result, e.result) << TypeName(e.type) << " " << OpName(e.op) << std::hex << " of " << int{e.a} << " and "
                                << int{e.b};
  }
}

TEST_P(ReducerTest, EveryTypeOperationCountAlignmentAndFormMatchesTheOracle) {
  std::mt19937_64 random(11);
  for (const auto [type, op] : AllReductions()) {
    const size_t element = TypeBytes(type);
    for (size_t count = 0; count < 300; count = count < 70 ? count + 1 : count + 23) {
      const int num_sources = 2 + static_cast<int>(random() % 8) * (count % 2);
      const uint32_t divisor = op == ReduceOp::kAvg ? num_sources : 0;
      std::vector<Bytes> sources;
      for (int s = 0; s < num_sources; ++s) sources.push_back(RandomElements(type, count, &random));
      const Bytes expected = FoldByOracle(type, op, divisor, sources, count);
      // Misaligned by whole elements, guarded on both sides; optionally in place of one of the sources.
      const size_t shift = random() % 9 * element;
      const int in_place = static_cast<int>(random() % (num_sources + 2));
      std::vector<Bytes> buffers;
      std::vector<const std::byte*> pointers;
      for (const Bytes& source : sources) {
        Bytes buffer(shift + source.size() + 64, std::byte{0x5a});
        std::copy(source.begin(), source.end(), buffer.begin() + shift);
        buffers.push_back(std::move(buffer));
      }
      for (const Bytes& buffer : buffers) pointers.push_back(buffer.data() + shift);
      Bytes fresh(shift + expected.size() + 64, std::byte{0x5a});
      Bytes second = fresh;
      Bytes& target = in_place < num_sources ? buffers[in_place] : fresh;
      SliceOp slice = MakeOp(type, op, count, divisor);
      slice.dst[0] = target.data() + shift;
      if (random() % 2) slice.dst[1] = second.data() + shift;
      slice.src = pointers.data();
      slice.inline_src[0] = pointers[0];
      slice.inline_src[1] = pointers[1];
      slice.num_sources = num_sources;
      RunOnHost(slice);
      SCOPED_TRACE(testing::Message() << TypeName(type) << " " << OpName(op) << " count " << count << " sources "
                                      << num_sources << " in place " << in_place);
      ASSERT_EQ(Bytes(target.begin() + shift, target.begin() + shift + expected.size()), expected);
      for (size_t i = 0; i < 64; ++i)
        ASSERT_EQ(target[shift + expected.size() + i], std::byte{0x5a}) << "wrote past the end";
      for (size_t i = 0; i < shift; ++i) ASSERT_EQ(target[i], std::byte{0x5a}) << "wrote before the beginning";
      if (slice.dst[1] != nullptr) {
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), second.begin() + shift)) << "second destination";
        ASSERT_EQ(second[shift + expected.size()], std::byte{0x5a});
      }
    }
  }
}

// Not only what the reducer and the oracle agree on.
TEST_P(ReducerTest, DerivedTypesHaveTheirOwnOperations) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto combine = [](DataType type, ReduceOp op, auto left, const auto& right) {
    SliceOp slice = MakeOp(type, op, sizeof left / TypeBytes(type), 0);
    slice.dst[0] = reinterpret_cast<std::byte*>(left.data());
    slice.inline_src[0] = slice.dst[0];
    slice.inline_src[1] = reinterpret_cast<const std::byte*>(right.data());
    slice.num_sources = 2;
    RunOnHost(slice);
    return left;
  };
  using Pairs = std::array<float, 4>;
  const Pairs product = combine(DataType::kComplex64, ReduceOp::kProd, Pairs{1, 2, 0, 1}, Pairs{3, 4, 0, 1});
  EXPECT_EQ(product, (Pairs{-5, 10, -1, 0}));  // (1 + 2i)(3 + 4i) = -5 + 10i, i * i = -1.
  const Pairs sum = combine(DataType::kComplex64, ReduceOp::kSum, Pairs{1, 2, nan, 1}, Pairs{3, 4, 0, 1});
  EXPECT_TRUE(sum[0] == 4 && sum[1] == 6 && std::isnan(sum[2]) && sum[3] == 2);
  using Bools = std::array<uint8_t, 4>;
  const Bools left{0, 0, 1, 1}, right{0, 1, 0, 1};
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kBor}) {
    EXPECT_EQ(combine(DataType::kBool, op, left, right), (Bools{0, 1, 1, 1})) << OpName(op);
  }
  for (const ReduceOp op : {ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kBand}) {
    EXPECT_EQ(combine(DataType::kBool, op, left, right), (Bools{0, 0, 0, 1})) << OpName(op);
  }
  EXPECT_EQ(combine(DataType::kBool, ReduceOp::kBxor, left, right), (Bools{0, 1, 1, 0}));
  using Words = std::array<int16_t, 2>;
  EXPECT_EQ(combine(DataType::kInt16, ReduceOp::kBxor, Words{0x0ff0, -1}, Words{0x00ff, 1}), (Words{0x0f0f, -2}));
  EXPECT_EQ(combine(DataType::kInt16, ReduceOp::kProd, Words{-32768, 300}, Words{-1, 300}), (Words{-32768, 24464}));
}

TEST_P(ReducerTest, OneSourceIsCopiedToOneOrTwoDestinations) {
  std::mt19937_64 random(5);
  for (size_t count : {0, 1, 100, 40000}) {
    const Bytes source = RandomElements(DataType::kFloat32, count, &random);
    Bytes first(source.size());
    Bytes second(source.size());
    SliceOp slice = MakeOp(DataType::kFloat32, ReduceOp::kSum, count, 0);
    slice.dst[0] = first.data();
    slice.inline_src[0] = source.data();
    slice.num_sources = 1;
    RunOnHost(slice);
    EXPECT_EQ(first, source);
    first.assign(first.size(), std::byte{0});
    slice.dst[1] = second.data();
    RunOnHost(slice);
    EXPECT_EQ(first, source);
    EXPECT_EQ(second, source);
  }
}

// A buffer whose content begins `shift` bytes behind a cache line, between guards.
class Shifted {
 public:
  Shifted(const Bytes& content, size_t shift) : bytes_(content.size()), all_(content.size() + 256, std::byte{0x5a}) {
    begin_ = all_.data() + 128 - reinterpret_cast<uintptr_t>(all_.data()) % 64 + shift;
    std::copy(content.begin(), content.end(), begin_);
  }

  std::byte* begin() { return begin_; }
  Bytes content() const { return {begin_, begin_ + bytes_}; }
  bool has_guards() const { return begin_[-1] == std::byte{0x5a} && begin_[bytes_] == std::byte{0x5a}; }

 private:
  const size_t bytes_;
  Bytes all_;
  std::byte* begin_;
};

// Large ones are put together in one destination and copied to the other unless both begin a line.
TEST_P(ReducerTest, TwoLargeDestinationsMayBeginAnywhere) {
  std::mt19937_64 random(7);
  for (const DataType type : {DataType::kInt8, DataType::kBFloat16, DataType::kFloat32, DataType::kComplex64}) {
    const size_t count = 20003 / TypeBytes(type);
    const Bytes left = RandomElements(type, count, &random), right = RandomElements(type, count, &random);
    const Bytes expected = FoldByOracle(type, ReduceOp::kAvg, 2, {left, right}, count);
    for (const auto& [first_shift, second_shift] : {std::pair{0, 0}, {16, 0}, {0, 16}, {16, 16}, {8, 56}}) {
      for (int in_place = 0; in_place < 3; ++in_place) {  // Nothing, or the destination of that number from 1.
        Shifted a(left, 16), b(right, 0), first(in_place == 1 ? left : Bytes(left.size()), first_shift),
            second(in_place == 2 ? right : Bytes(left.size()), second_shift);
        SliceOp slice = MakeOp(type, ReduceOp::kAvg, count, 2);
        slice.dst[0] = first.begin();
        slice.dst[1] = second.begin();
        slice.inline_src[0] = in_place == 1 ? first.begin() : a.begin();
        slice.inline_src[1] = in_place == 2 ? second.begin() : b.begin();
        slice.num_sources = 2;
        RunOnHost(slice);
        SCOPED_TRACE(testing::Message() << TypeName(type) << " at " << first_shift << " and " << second_shift
                                        << ", in place " << in_place);
        ASSERT_EQ(first.content(), expected);
        ASSERT_EQ(second.content(), expected);
        ASSERT_TRUE(first.has_guards() && second.has_guards());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ReducerTest, testing::ValuesIn(ReducerTargets()),
                         [](const testing::TestParamInfo<int64_t>& info) {
                           return std::string(hwy::TargetName(info.param));
                         });

TEST(ReducerTargetTest, IsNamed) { EXPECT_STRNE(HostReducerTarget(), ""); }

}  // namespace
}  // namespace annulus
