// The reducer against a scalar oracle, bit for bit: every type, operation, form and instruction set that this machine
// runs.
#include "collectives/reducer.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace annulus {
namespace {

using Bytes = std::vector<std::byte>;

// ---- The oracle: no code in common with the reducer.

double HalfToDouble(uint16_t h) {
  const int exponent = h >> 10 & 31;
  const double mantissa = h & 1023;
  const double sign = h >> 15 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return exponent == 0 ? sign * std::ldexp(mantissa, -24) : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

// Rounds to nearest even on a grid of `bits` mantissa bits whose smallest step is 2^min_exponent.
double RoundTo(double value, int bits, int min_exponent) {
  if (value == 0 || std::isinf(value)) return value;
  const int step = std::max(std::ilogb(value) - bits, min_exponent);
  return std::ldexp(std::nearbyint(std::ldexp(value, -step)), step);
}

uint16_t DoubleToHalf(double value) {
  if (std::isnan(value)) return 0x7e00;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(RoundTo(value, 10, -24));
  if (magnitude >= 65536) return sign | 0x7c00;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -15);
  if (magnitude < std::ldexp(1.0, -14)) return sign | static_cast<uint16_t>(std::ldexp(magnitude, 24));
  return sign |
         static_cast<uint16_t>((exponent + 15) << 10 | (static_cast<int>(std::ldexp(magnitude, 10 - exponent)) & 1023));
}

double BrainToDouble(uint16_t b) { return std::bit_cast<float>(uint32_t{b} << 16); }

uint16_t DoubleToBrain(double value) {
  if (std::isnan(value)) return 0x7fc0;
  const double rounded = RoundTo(value, 7, -133);
  // Beyond the largest float the conversion gives infinity.
  const float narrow = std::fabs(rounded) > std::numeric_limits<float>::max()
                           ? std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(value))
                           : static_cast<float>(rounded);
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(narrow) >> 16);
}

template <typename T>
T Extreme(T a, T b, bool want_min) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
  if (a == b) return want_min == std::signbit(a) ? a : b;
  return (a < b) == want_min ? a : b;
}

template <typename T>
T FloatOp(T a, T b, ReduceOp op) {
  T result = 0;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      result = a + b;
      break;
    case ReduceOp::kProd:
      result = a * b;
      break;
    case ReduceOp::kMin:
      result = Extreme(a, b, true);
      break;
    case ReduceOp::kMax:
      result = Extreme(a, b, false);
      break;
  }
  return std::isnan(result) ? std::numeric_limits<T>::quiet_NaN() : result;
}

template <typename T>
T IntOp(T a, T b, ReduceOp op) {
  using U = std::make_unsigned_t<T>;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    case ReduceOp::kProd:
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    case ReduceOp::kMin:
      return a < b ? a : b;
    case ReduceOp::kMax:
      return a > b ? a : b;
  }
  return 0;
}

template <typename T>
T Get(const std::byte* from, size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Put(std::byte* to, size_t i, T value) {
  std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

// Element i of `to` = a op b [/ divisor].
void OracleStep(DataType type, ReduceOp op, uint32_t divisor, const std::byte* a, const std::byte* b, std::byte* to,
                size_t i) {
  const auto narrow = [&](auto widen, auto shrink) {
    uint16_t value = shrink(FloatOp<float>(static_cast<float>(widen(Get<uint16_t>(a, i))),
                                           static_cast<float>(widen(Get<uint16_t>(b, i))), op));
    if (divisor > 1) value = shrink(static_cast<float>(widen(value)) / static_cast<float>(divisor));
    Put(to, i, value);
  };
  const auto plain = [&](auto zero, auto combine) {
    using T = decltype(zero);
    T value = combine(Get<T>(a, i), Get<T>(b, i));
    if (divisor > 1) value = static_cast<T>(value / static_cast<T>(divisor));
    if (value != value) value = static_cast<T>(std::numeric_limits<double>::quiet_NaN());
    Put(to, i, value);
  };
  switch (type) {
    case DataType::kInt32:
      return plain(int32_t{0}, [op](int32_t x, int32_t y) { return IntOp(x, y, op); });
    case DataType::kInt64:
      return plain(int64_t{0}, [op](int64_t x, int64_t y) { return IntOp(x, y, op); });
    case DataType::kFloat32:
      return plain(0.0f, [op](float x, float y) { return FloatOp(x, y, op); });
    case DataType::kFloat64:
      return plain(0.0, [op](double x, double y) { return FloatOp(x, y, op); });
    case DataType::kFloat16:
      return narrow(HalfToDouble, DoubleToHalf);
    case DataType::kBFloat16:
      return narrow(BrainToDouble, DoubleToBrain);
  }
}

Bytes Oracle(DataType type, ReduceOp op, uint32_t divisor, const std::vector<Bytes>& sources, size_t count) {
  Bytes result = sources[0];
  for (size_t s = 1; s < sources.size(); ++s) {
    const uint32_t last_divisor = s + 1 == sources.size() ? divisor : 0;
    for (size_t i = 0; i < count; ++i)
      OracleStep(type, op, last_divisor, result.data(), sources[s].data(), result.data(), i);
  }
  return result;
}

// ---- Inputs.

Bytes RandomElements(DataType type, size_t count, std::mt19937_64* random) {
  Bytes bytes(count * TypeBytes(type));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((*random)());
  // Random bits are rarely zero, infinite or a tie: mix in such values.
  const uint64_t specials32[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00001,
                                 0xffa00000, 1,          0x3f800000, 0x4b800001};
  const uint64_t specials64[] = {0, 1ull << 63,    0x7ffull << 52, 0xfffull << 52, (0x7ffull << 52) + 5,
                                 1, 0x3ffull << 52};
  for (size_t i = 0; i < count; i += 5) {
    if (TypeBytes(type) == 4)
      Put(bytes.data(), i, static_cast<uint32_t>(specials32[(*random)() % std::size(specials32)]));
    if (TypeBytes(type) == 8) Put(bytes.data(), i, specials64[(*random)() % std::size(specials64)]);
  }
  return bytes;
}

SliceOp MakeOp(DataType type, ReduceOp op, size_t count, uint32_t divisor) {
  SliceOp slice;
  slice.count = count;
  slice.type = type;
  slice.op = op;
  slice.divisor = divisor;
  return slice;
}

// Every instruction set that was compiled in and runs here.
std::vector<int64_t> Targets() {
  std::vector<int64_t> targets;
  hwy::SetSupportedTargetsForTest(0);
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    hwy::SetSupportedTargetsForTest(target);
    // Another name: it was not compiled in, and something else would be tested twice.
    if (std::strcmp(HostReducerTarget(), hwy::TargetName(target)) == 0) targets.push_back(target);
  }
  hwy::SetSupportedTargetsForTest(0);
  return targets;
}

class ReducerTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

std::vector<uint16_t> Representatives() {
  std::vector<uint16_t> values = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff,
                                  0x7c00, 0xfc00, 0x7c01, 0x7e00, 0xfe55, 0x3c00, 0xbc00, 0x3c01,
                                  0x0080, 0x007f, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0x7fc0,
                                  0x3f80, 0xbf80, 0x3f81, 0x6400, 0x6401, 0x0200, 0x1400, 0x9400};
  std::mt19937 random(3);
  while (values.size() < 64) values.push_back(static_cast<uint16_t>(random()));
  return values;
}

TEST_P(ReducerTest, SixteenBitFloatsAreRightForEveryValueWithEveryClass) {
  constexpr size_t kAll = 65536;
  Bytes all(kAll * 2);
  for (size_t i = 0; i < kAll; ++i) Put(all.data(), i, static_cast<uint16_t>(i));
  for (DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    for (uint16_t other : Representatives()) {
      Bytes fixed(kAll * 2);
      for (size_t i = 0; i < kAll; ++i) Put(fixed.data(), i, other);
      for (int op = 0; op < kNumReduceOps; ++op) {
        SliceOp slice = MakeOp(type, static_cast<ReduceOp>(op), kAll, op == static_cast<int>(ReduceOp::kAvg) ? 3 : 0);
        Bytes result(kAll * 2);
        slice.dst[0] = result.data();
        slice.inline_src[0] = all.data();
        slice.inline_src[1] = fixed.data();
        slice.num_sources = 2;
        RunOnHost(slice);
        for (size_t i = 0; i < kAll; ++i) {
          uint16_t expected = 0;
          OracleStep(type, slice.op, slice.divisor, &all[i * 2], &fixed[i * 2], reinterpret_cast<std::byte*>(&expected),
                     0);
          ASSERT_EQ(Get<uint16_t>(result.data(), i), expected)
              << TypeName(type) << " " << OpName(slice.op) << " of " << std::hex << i << " and " << other;
        }
      }
    }
  }
}

TEST_P(ReducerTest, EveryTypeOperationCountAlignmentAndFormMatchesTheOracle) {
  std::mt19937_64 random(11);
  for (int type_number = 0; type_number < kNumDataTypes; ++type_number) {
    const auto type = static_cast<DataType>(type_number);
    const size_t element = TypeBytes(type);
    for (int op = 0; op < kNumReduceOps; ++op) {
      for (size_t count = 0; count < 300; count = count < 70 ? count + 1 : count + 23) {
        const int num_sources = 2 + static_cast<int>(random() % 8) * (count % 2);
        const uint32_t divisor = op == static_cast<int>(ReduceOp::kAvg) ? num_sources : 0;
        std::vector<Bytes> sources;
        for (int s = 0; s < num_sources; ++s) sources.push_back(RandomElements(type, count, &random));
        const Bytes expected = Oracle(type, static_cast<ReduceOp>(op), divisor, sources, count);
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
        SliceOp slice = MakeOp(type, static_cast<ReduceOp>(op), count, divisor);
        slice.dst[0] = target.data() + shift;
        if (random() % 2) slice.dst[1] = second.data() + shift;
        slice.src = pointers.data();
        slice.inline_src[0] = pointers[0];
        slice.inline_src[1] = pointers[1];
        slice.num_sources = num_sources;
        RunOnHost(slice);
        SCOPED_TRACE(testing::Message() << TypeName(type) << " " << OpName(slice.op) << " count " << count
                                        << " sources " << num_sources << " in place " << in_place);
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

INSTANTIATE_TEST_SUITE_P(Targets, ReducerTest, testing::ValuesIn(Targets()),
                         [](const testing::TestParamInfo<int64_t>& info) {
                           return std::string(hwy::TargetName(info.param));
                         });

TEST(ReducerTargetTest, IsNamed) { EXPECT_STRNE(HostReducerTarget(), ""); }

}  // namespace
}  // namespace annulus
