// The crafted inputs: exact in every order of folding, different where they must be, and wrong results are seen.
#include "bench/perf/perf_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <set>

#include "bench/perf/perf_collective.h"
#include "tests/soak/rounds.h"

namespace annulus::perf {
namespace {

constexpr size_t kElements = 257;

int SignificandBits(annulus_type_t type) {
  switch (type) {
    case ANNULUS_FLOAT8_E4M3:
      return 4;
    case ANNULUS_FLOAT8_E5M2:
      return 3;
    case ANNULUS_FLOAT16:
      return 11;
    case ANNULUS_BFLOAT16:
      return 8;
    case ANNULUS_FLOAT32:
      return 24;
    default:
      return 53;
  }
}

double DecodeHalf(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double fraction = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

double DecodeFloat8(uint8_t code, int mantissa_bits, int bias) {
  const int exponent = (code & 0x7f) >> mantissa_bits;
  const double fraction = code & ((1 << mantissa_bits) - 1);
  const double unit = std::ldexp(1.0, std::max(exponent, 1) - bias - mantissa_bits);
  const double magnitude = (fraction + (exponent == 0 ? 0 : 1 << mantissa_bits)) * unit;
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Half the smallest number, which is what rounding may add to a small one.
double HalfSmallest(annulus_type_t type) {
  if (type == ANNULUS_FLOAT8_E4M3) return 0x1p-10;
  return type == ANNULUS_FLOAT8_E5M2 ? 0x1p-17 : 0x1p-25;
}

double Decode(annulus_type_t type, const uint8_t* from) {
  if (type == ANNULUS_FLOAT8_E4M3) return DecodeFloat8(*from, 3, 7);
  if (type == ANNULUS_FLOAT8_E5M2) return DecodeFloat8(*from, 2, 15);
  uint16_t half = 0;
  float single = 0;
  double wide = 0;
  std::memcpy(&half, from, sizeof(half));
  switch (type) {
    case ANNULUS_FLOAT16:
      return DecodeHalf(half);
    case ANNULUS_BFLOAT16:
      return std::bit_cast<float>(uint32_t{half} << 16);
    case ANNULUS_FLOAT32:
      std::memcpy(&single, from, sizeof(single));
      return single;
    default:
      std::memcpy(&wide, from, sizeof(wide));
      return wide;
  }
}

std::vector<uint8_t> Bytes(const Sequence& sequence, annulus_type_t type) {
  std::vector<uint8_t> bytes(kElements * annulus_type_bytes(type));
  sequence.Fill(0, kElements, bytes.data());
  return bytes;
}

bool FitsSignificand(double value, int bits) {
  if (value == 0) return true;
  int exponent = 0;
  const double scaled = std::ldexp(std::frexp(value, &exponent), bits);
  return scaled == std::nearbyint(scaled);
}

double Fold(annulus_op_t op, double a, double b) {
  switch (op) {
    case ANNULUS_PROD:
      return a * b;
    case ANNULUS_MIN:
      return std::min(a, b);
    case ANNULUS_MAX:
      return std::max(a, b);
    default:
      return a + b;
  }
}

class FloatInputs : public testing::TestWithParam<std::tuple<annulus_type_t, annulus_op_t, int>> {};

TEST_P(FloatInputs, EveryPartialResultIsExactInAnyOrder) {
  const auto [type, op, nranks] = GetParam();
  const InputSpec spec = {type, op, nranks, 7, kElements};
  const size_t width = annulus_type_bytes(type);
  std::vector<std::vector<uint8_t>> inputs;
  for (int rank = 0; rank < nranks; ++rank) inputs.push_back(Bytes(MakeInput(spec, rank), type));
  const std::vector<uint8_t> reduced = Bytes(MakeReduced(spec), type);
  std::vector<int> order(static_cast<size_t>(nranks));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(1);
  for (int shuffles = 0; shuffles < 3; ++shuffles) {
    for (size_t i = 0; i < kElements; ++i) {
      double folded = Decode(type, &inputs[static_cast<size_t>(order[0])][i * width]);
      for (size_t r = 1; r < order.size(); ++r) {
        folded = Fold(op, folded, Decode(type, &inputs[static_cast<size_t>(order[r])][i * width]));
        ASSERT_TRUE(FitsSignificand(folded, SignificandBits(type))) << folded;
        ASSERT_LE(std::fabs(folded), type == ANNULUS_FLOAT8_E4M3 ? 448 : 57344) << "beyond the type: " << folded;
        ASSERT_TRUE(folded == 0 || std::fabs(folded) >= (type == ANNULUS_FLOAT8_E4M3 ? 0x1p-6 : 0x1p-14))
            << "a denormal: " << folded;
      }
      const double expected = Decode(type, &reduced[i * width]);
      if (op != ANNULUS_AVG) {
        ASSERT_EQ(expected, folded);
      } else {
        // The one rounding is that of the division.
        ASSERT_NEAR(expected, folded / nranks,
                    std::fabs(folded / nranks) * std::ldexp(1.0, -SignificandBits(type)) + HalfSmallest(type));
      }
    }
    std::shuffle(order.begin(), order.end(), random);
  }
}

// Thousands of ranks take a sanitizer too long, and it looks at accesses to memory alone.
constexpr int kManyRanks = kSanitized ? 8 : 300;
constexpr int kMostRanks = kSanitized ? 64 : 3000;

INSTANTIATE_TEST_SUITE_P(
    NarrowTypes, FloatInputs,
    testing::Combine(testing::Values(ANNULUS_FLOAT16, ANNULUS_BFLOAT16, ANNULUS_FLOAT8_E4M3, ANNULUS_FLOAT8_E5M2),
                     testing::ValuesIn(kAllOps), testing::Values(1, 2, 3, 4, 7, kManyRanks, kMostRanks)));

TEST(WideFloatInputs, EveryPartialSumIsExact) {
  for (const annulus_type_t type : {ANNULUS_FLOAT32, ANNULUS_FLOAT64}) {
    for (const int nranks : {1, 2, 3, 5, 64}) {
      const InputSpec spec = {type, ANNULUS_SUM, nranks, 3, kElements};
      std::vector<double> magnitudes(kElements);  // By element, summed over the ranks.
      for (int rank = 0; rank < nranks; ++rank) {
        const std::vector<uint8_t> input = Bytes(MakeInput(spec, rank), type);
        for (size_t i = 0; i < kElements; ++i) {
          const double value = Decode(type, &input[i * annulus_type_bytes(type)]);
          ASSERT_EQ(value, std::nearbyint(value));
          magnitudes[i] += std::fabs(value);
        }
      }
      const double largest = *std::max_element(magnitudes.begin(), magnitudes.end());
      EXPECT_LE(largest, std::ldexp(1.0, SignificandBits(type)));
      EXPECT_GT(largest, 1000) << "too tame to show a lost low bit";
    }
  }
}

TEST(IntInputs, WrapAndDivideTowardsZero) {
  const InputSpec sum = {ANNULUS_INT32, ANNULUS_SUM, 3, 5, kElements};
  const InputSpec average = {ANNULUS_INT32, ANNULUS_AVG, 3, 5, kElements};
  std::vector<int32_t> total(kElements, 0), value(kElements), reduced(kElements);
  for (int rank = 0; rank < 3; ++rank) {
    MakeInput(sum, rank).Fill(0, kElements, value.data());
    for (size_t i = 0; i < kElements; ++i) {
      total[i] = static_cast<int32_t>(static_cast<uint32_t>(total[i]) + static_cast<uint32_t>(value[i]));
    }
  }
  MakeReduced(sum).Fill(0, kElements, reduced.data());
  EXPECT_EQ(reduced, total);
  MakeReduced(average).Fill(0, kElements, reduced.data());
  for (size_t i = 0; i < kElements; ++i) ASSERT_EQ(reduced[i], total[i] / 3);
}

TEST(IntInputs, UnsignedAveragesDivideTheWrappedSum) {
  const InputSpec sum = {ANNULUS_UINT8, ANNULUS_SUM, 7, 5, kElements};
  const InputSpec average = {ANNULUS_UINT8, ANNULUS_AVG, 7, 5, kElements};
  std::vector<uint8_t> total(kElements), reduced(kElements);
  MakeReduced(sum).Fill(0, kElements, total.data());
  MakeReduced(average).Fill(0, kElements, reduced.data());
  for (size_t i = 0; i < kElements; ++i) ASSERT_EQ(reduced[i], total[i] / 7);
}

TEST(Inputs, DifferByRankElementAndSeed) {
  for (const annulus_type_t type : kAllTypes) {
    for (const annulus_op_t op : kAllOps) {
      const InputSpec spec = {type, op, 4, 1, kElements};
      InputSpec other_seed = spec;
      other_seed.seed = 2;
      const std::set<std::vector<uint8_t>> distinct = {Bytes(MakeInput(spec, 0), type), Bytes(MakeInput(spec, 1), type),
                                                       Bytes(MakeInput(spec, 2), type), Bytes(MakeInput(spec, 3), type),
                                                       Bytes(MakeInput(other_seed, 0), type)};
      EXPECT_EQ(distinct.size(), 5u) << TypeName(type) << " " << OpName(op);
    }
  }
}

TEST(Sequence, SeesEveryWrongElement) {
  constexpr size_t kMany = 3 * kPeriod + 11;
  const Sequence sequence = MakeInput({ANNULUS_FLOAT32, ANNULUS_SUM, 4, 1, kMany}, 2);
  std::vector<float> values(kMany);
  sequence.Fill(5, kMany, values.data());
  EXPECT_EQ(sequence.CountDifferent(5, kMany, values.data()), 0);
  for (const size_t i : {size_t{0}, kPeriod - 6, kPeriod, kMany - 1}) {
    values[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(values[i]) ^ 1);
  }
  EXPECT_EQ(sequence.CountDifferent(5, kMany, values.data()), 4);
}

TEST(Sequence, SeesDataThatLandedAPowerOfTwoTooFar) {
  constexpr size_t kMany = 1 << 18;
  const Sequence sequence = MakeInput({ANNULUS_INT64, ANNULUS_SUM, 2, 1, kMany}, 0);
  std::vector<int64_t> values(kMany);
  for (size_t shift = 1; shift < kMany; shift *= 2) {
    sequence.Fill(shift, kMany, values.data());
    EXPECT_EQ(sequence.CountDifferent(0, kMany, values.data()), static_cast<int64_t>(kMany)) << shift;
  }
}

}  // namespace
}  // namespace annulus::perf
