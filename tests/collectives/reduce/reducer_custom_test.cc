// Sources scaled by a factor, against the scalar oracle, bit for bit; and functions of the user's: what they are called
// with, and in which order.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "collectives/reduce/reducer.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/collectives/reduce/reducer_oracle.h"

namespace annulus {
namespace {

bool IsUnsigned(DataType type) { return ClassOf(type) == TypeClass::kUnsigned; }

std::vector<double> Factors(DataType type) {
  if (IsFloat(type) || ClassOf(type) == TypeClass::kComplex)
    return {1, 0.5, -1.0 / 3, 3, 1e-3, 0.1, 1e6, 1e-40, 1e39, 0, -0.0};
  std::vector<double> factors = {0, 1, 3, 100};
  const int bits = static_cast<int>(TypeBytes(type)) * 8;
  if (IsUnsigned(type)) {
    factors.push_back(std::ldexp(1.0, bits - 1));
    factors.push_back(std::ldexp(255.0, bits - 8));
  } else {
    factors.insert(factors.end(), {-1, -7, -std::ldexp(1.0, bits - 1)});
  }
  return factors;
}

class ReducerCustomTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(ReducerCustomTest, EveryEightAndSixteenBitValueTimesAFactorIsRight) {
  for (int t = 0; t < kNumDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    const size_t element = TypeBytes(type);
    if (element > 2 || type == DataType::kBool) continue;
    const size_t count = size_t{1} << 8 * element;
    Bytes all(count * element), result(all.size()), expected(all.size());
    for (size_t i = 0; i < count; ++i) std::memcpy(&all[i * element], &i, element);
    for (double factor : Factors(type)) {
      SliceOp op;
      op.dst[0] = result.data();
      op.inline_src[0] = all.data();
      op.num_sources = 1;
      op.count = count;
      op.type = type;
      op.scaled_source = 0;
      op.custom.factor = factor;
      RunOnHost(op);
      for (size_t i = 0; i < count; ++i) OracleScale(type, factor, all.data(), expected.data(), i);
      for (size_t at = 0; at < expected.size(); ++at) {
        ASSERT_EQ(result[at], expected[at]) << TypeName(type) << " " << at / element << " times " << factor;
      }
    }
  }
}

TEST_P(ReducerCustomTest, AnyOneSourceIsScaledInEveryTypeCountAndForm) {
  std::mt19937_64 random(17);
  for (int t = 0; t < kNumDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    if (type == DataType::kBool) continue;  // Which has no factors.
    for (int round = 0; round < 60; ++round) {
      const std::vector<double> factors = Factors(type);
      const double factor = factors[random() % factors.size()];
      const int num_sources = 1 + static_cast<int>(random() % 4);
      const int scaled = static_cast<int>(random() % num_sources);
      const int in_place = static_cast<int>(random() % (num_sources + 1));
      const size_t count = random() % (round % 2 ? 70 : 10000);
      std::vector<Bytes> sources;
      for (int s = 0; s < num_sources; ++s) sources.push_back(RandomElements(type, count, &random));
      std::vector<Bytes> scaled_sources = sources;
      for (size_t i = 0; i < count; ++i)
        OracleScale(type, factor, sources[scaled].data(), scaled_sources[scaled].data(), i);
      const Bytes expected = FoldByOracle(type, ReduceOp::kSum, 0, scaled_sources, count);
      Bytes fresh(expected.size()), second(expected.size());
      std::vector<const std::byte*> pointers;
      for (const Bytes& source : sources) pointers.push_back(source.data());
      SliceOp op;
      op.dst[0] = in_place < num_sources ? sources[in_place].data() : fresh.data();
      if (random() % 2) op.dst[1] = second.data();
      op.src = pointers.data();
      for (int s = 0; s < num_sources && s < 2; ++s) op.inline_src[s] = pointers[s];
      op.num_sources = num_sources;
      op.count = count;
      op.type = type;
      op.scaled_source = scaled;
      op.custom.factor = factor;
      RunOnHost(op);
      SCOPED_TRACE(testing::Message() << TypeName(type) << " times " << factor << ", source " << scaled << " of "
                                      << num_sources << ", in place of " << in_place << ", count " << count);
      ASSERT_EQ(in_place < num_sources ? sources[in_place] : fresh, expected);
      if (op.dst[1] != nullptr) {
        ASSERT_EQ(second, expected);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ReducerCustomTest, testing::ValuesIn(ReducerTargets()),
                         [](const testing::TestParamInfo<int64_t>& info) {
                           return std::string(hwy::TargetName(info.param));
                         });

TEST(ReducerUserFunctionTest, FoldsFromTheLeftInEveryForm) {
  std::mt19937_64 random(23);
  for (int round = 0; round < 200; ++round) {
    const int num_sources = 1 + static_cast<int>(random() % 5);
    const size_t count = random() % 5000;
    std::vector<Bytes> sources;
    for (int s = 0; s < num_sources; ++s) sources.push_back(RandomElements(DataType::kUint32, count, &random));
    size_t elements = 0;
    Bytes expected = sources[0];
    for (int s = 1; s < num_sources; ++s)
      ComposeLines(expected.data(), sources[s].data(), expected.data(), count, ANNULUS_UINT32, &elements);
    const int in_place = static_cast<int>(random() % (num_sources + 1));
    Bytes fresh(expected.size()), second(expected.size());
    std::vector<const std::byte*> pointers;
    for (const Bytes& source : sources) pointers.push_back(source.data());
    size_t called_for = 0;
    SliceOp op;
    op.dst[0] = in_place < num_sources ? sources[in_place].data() : fresh.data();
    if (random() % 2) op.dst[1] = second.data();
    op.src = pointers.data();
    for (int s = 0; s < num_sources && s < 2; ++s) op.inline_src[s] = pointers[s];
    op.num_sources = num_sources;
    op.count = count;
    op.type = DataType::kUint32;
    UserReduction user;
    user.function = ComposeLines;
    user.context = &called_for;
    op.custom.user = &user;
    RunOnHost(op);
    SCOPED_TRACE(testing::Message() << num_sources << " sources, in place of " << in_place << ", count " << count);
    ASSERT_EQ(in_place < num_sources ? sources[in_place] : fresh, expected);
    ASSERT_EQ(called_for, count * (num_sources - 1)) << "each element is combined once per step";
    if (op.dst[1] != nullptr) {
      ASSERT_EQ(second, expected);
    }
  }
}

}  // namespace
}  // namespace annulus
