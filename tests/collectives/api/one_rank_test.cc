// A communicator of one rank follows the rules of larger ones: an average is a sum that is divided once.
#include <annulus.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "collectives/reduce/reducer.h"
#include "tests/collectives/harness/calls.h"

namespace annulus {
namespace {

using Bytes = std::vector<std::byte>;

// All elements, or halves of complex ones, of 8 and 16 bits; of larger ones those with the top and the bottom bits in
// all combinations.
Bytes Elements(size_t element_bytes) {
  const size_t count = element_bytes == 1 ? 256 : 65536;
  Bytes bytes(count * element_bytes);
  for (size_t i = 0; i < count; ++i) {
    uint64_t value = i;
    if (element_bytes > 2) value = (i >> 4) << (8 * element_bytes - 12) | (i & 15);
    std::memcpy(bytes.data() + i * element_bytes, &value, element_bytes);
  }
  return bytes;
}

// The element that a sum leaves as it is: -0 for floats, 0 for integers.
Bytes Nothing(size_t element_bytes, size_t count, bool is_float) {
  Bytes bytes(count * element_bytes);
  for (size_t i = 0; is_float && i < count; ++i) bytes[(i + 1) * element_bytes - 1] = std::byte{0x80};
  return bytes;
}

TEST(OneRankTest, AnAverageHasTheBitsOfADivision) {
  annulus_config_t config;
  ASSERT_EQ(annulus_config_init(&config, sizeof config, 0), ANNULUS_OK);
  config.rank = 0;
  config.size = 1;
  annulus_comm_t* comm = nullptr;
  ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
  for (int number = 0; number < kNumDataTypes; ++number) {
    const DataType type = static_cast<DataType>(number);
    if (!CanReduce(type, ReduceOp::kAvg)) continue;
    SCOPED_TRACE(TypeName(type));
    const size_t element_bytes = TypeBytes(type);
    const Bytes input = Elements(TypeAlignment(type));
    const size_t count = input.size() / element_bytes;
    const Bytes nothing = Nothing(TypeAlignment(type), input.size() / TypeAlignment(type),
                                  ClassOf(type) == TypeClass::kFloat || ClassOf(type) == TypeClass::kComplex);
    Bytes expected(input.size());
    SliceOp op;
    op.dst[0] = expected.data();
    op.inline_src[0] = input.data();
    op.inline_src[1] = nothing.data();
    op.num_sources = 2;
    op.count = count;
    op.type = type;
    op.op = ReduceOp::kAvg;
    op.divisor = 1;
    RunOnHost(op);
    const auto c_type = static_cast<annulus_type_t>(type);
    Bytes output(input.size());
    ASSERT_EQ(annulus_allreduce(comm, input.data(), output.data(), count, c_type, ANNULUS_AVG), ANNULUS_OK);
    EXPECT_EQ(output, expected) << "allreduce";
    ASSERT_EQ(annulus_reduce(comm, input.data(), output.data(), count, c_type, ANNULUS_AVG, 0), ANNULUS_OK);
    EXPECT_EQ(output, expected) << "reduce";
    output = input;
    ASSERT_EQ(annulus_reduce_scatter(comm, output.data(), output.data(), count, c_type, ANNULUS_AVG), ANNULUS_OK);
    EXPECT_EQ(output, expected) << "reduce_scatter in place";
    Bytes whole = input;
    annulus_request_t* all = nullptr;
    Calls calls;
    for (const auto& [at, elements] : {std::pair<size_t, size_t>{0, 100}, {100, count - 100}}) {
      std::byte* const data = whole.data() + at * element_bytes;
      calls.Allreduce(data, data, elements, c_type, ANNULUS_AVG);
    }
    ASSERT_EQ(calls.Submit(comm, &all), ANNULUS_OK);
    ASSERT_EQ(annulus_request_wait(all, -1), ANNULUS_OK);
    annulus_request_free(all);
    EXPECT_EQ(whole, expected) << "group";
  }
  EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
}

}  // namespace
}  // namespace annulus
