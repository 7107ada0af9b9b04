// The device kernels, run by the host, against the host reducer, bit for bit: every type, operation, form, alignment
// and length of the ends.
#include "cuda_kernels/reduce_kernel.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <vector>

#include "collectives/reduce/reducer.h"
#include "cuda_kernels/kernel_names.h"
#include "cuda_kernels/reduce_on_host.h"
#include "tests/collectives/reduce/reducer_oracle.h"
#include "tests/soak/rounds.h"

namespace annulus::cuda {
namespace {

struct Grid {
  unsigned blocks;
  unsigned threads;
};

// What a queue makes of an operation.
KernelSlice ToKernel(const SliceOp& op) {
  KernelSlice slice;
  slice.dst[0] = op.dst[0];
  slice.dst[1] = op.dst[1];
  slice.src[0] = op.inline_src[0];
  slice.src[1] = op.inline_src[1];
  slice.many = op.src;
  slice.more = op.more;
  slice.num_more = static_cast<int16_t>(op.num_more);
  slice.count = op.count;
  slice.factor = op.custom.factor;
  slice.divisor = op.divisor;
  slice.num_sources = static_cast<int16_t>(op.num_sources);
  slice.scaled_source = static_cast<int16_t>(op.scaled_source);
  return slice;
}

ReduceOp KernelOp(ReduceOp op) { return op == ReduceOp::kAvg ? ReduceOp::kSum : op; }

void RunKernel(const SliceOp& op, Grid grid) {
  uint32_t done = 0;
  KernelSlice slice = ToKernel(op);
  slice.done = &done;
  slice.done_value = 77;
  ASSERT_TRUE(RunSliceOnHost(KernelName(op.type, KernelOp(op.op)), slice, grid.blocks, grid.threads));
  EXPECT_EQ(done, 77u);
}

SliceOp TwoSources(DataType type, ReduceOp op, const Bytes& a, const Bytes& b, uint32_t divisor) {
  SliceOp slice;
  slice.inline_src[0] = a.data();
  slice.inline_src[1] = b.data();
  slice.num_sources = 2;
  slice.count = a.size() / TypeBytes(type);
  slice.type = type;
  slice.op = op;
  slice.divisor = op == ReduceOp::kAvg ? divisor : 0;
  return slice;
}

// Runs `op`, which has no destination yet, both ways.
void ExpectSameBits(SliceOp op) {
  const size_t bytes = op.count * TypeBytes(op.type);
  Bytes expected(bytes, std::byte{0x5a});
  Bytes result(bytes, std::byte{0xa5});
  op.dst[0] = expected.data();
  RunOnHost(op);
  op.dst[0] = result.data();
  RunKernel(op, {2, 32});
  if (std::memcmp(expected.data(), result.data(), bytes) == 0) return;
  for (size_t at = 0; at < bytes; ++at) {
    ASSERT_EQ(result[at], expected[at]) << TypeName(op.type) << " " << OpName(op.op) << ", divisor " << op.divisor
                                        << ", factor " << op.custom.factor << ", element " << at / TypeBytes(op.type);
  }
}

// What has kernels of its own, and averages, which are sums.
std::vector<Reduction> KernelReductions() {
  std::vector<Reduction> reductions = AllReductions();
  std::erase_if(reductions, [](const Reduction& each) { return !HasKernel(each.type, KernelOp(each.op)); });
  return reductions;
}

std::vector<ReduceOp> OpsOf(DataType type) {
  std::vector<ReduceOp> ops;
  for (const Reduction& each : KernelReductions()) {
    if (each.type == type) ops.push_back(each.op);
  }
  return ops;
}

// Factors that every type can hold.
constexpr double kFactors[] = {0, 1, 2, 3, 5, 7, 11, 100};
constexpr double kFloatFactors[] = {0.1, -0.0, -1.5, 1e30, 1e-30, 1e-44, 1e300};

void ExpectSameScaling(DataType type, const Bytes& values) {
  SliceOp scale;
  scale.inline_src[0] = values.data();
  scale.num_sources = 1;
  scale.count = values.size() / TypeBytes(type);
  scale.type = type;
  scale.scaled_source = 0;
  for (const double factor : kFactors) {
    scale.custom.factor = factor;
    ExpectSameBits(scale);
  }
  if (!IsFloat(type)) return;
  for (const double factor : kFloatFactors) {
    scale.custom.factor = factor;
    ExpectSameBits(scale);
  }
}

TEST(ReduceKernelTest, BytesHaveTheReducersBitsForEveryPair) {
  Bytes a(65536);
  Bytes b(65536);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<std::byte>(i >> 8);
    b[i] = static_cast<std::byte>(i & 0xff);
  }
  for (const DataType type : {DataType::kInt8, DataType::kUint8, DataType::kFloat8E4M3, DataType::kFloat8E5M2}) {
    for (const ReduceOp op : OpsOf(type)) ExpectSameBits(TwoSources(type, op, a, b, 1));
    for (const uint32_t divisor : {2u, 3u, 7u, 100u, 127u, 128u, 255u, 256u, 257u, 1000u}) {
      ExpectSameBits(TwoSources(type, ReduceOp::kAvg, a, b, divisor));
    }
    ExpectSameScaling(type, a);
  }
}

TEST(ReduceKernelTest, SixteenBitFloatsHaveTheReducersBitsForEveryValueWithEveryClass) {
  Bytes a(65536 * sizeof(uint16_t));
  for (size_t i = 0; i < 65536; ++i) Put(a.data(), i, static_cast<uint16_t>(i));
  std::mt19937 random(3);
  std::vector<uint16_t> classes = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x7c00,
                                   0xfc00, 0x7c01, 0x7e00, 0xfe55, 0x3c00, 0xbc00, 0x3c01, 0x0080, 0x007f,
                                   0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0x7fc0, 0x3f80, 0xbf80};
  while (classes.size() < 40) classes.push_back(static_cast<uint16_t>(random()));
  Bytes b(a.size());
  for (const DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    for (size_t c = 0; c < classes.size(); c += kSanitized ? 8 : 1) {
      const uint16_t value = classes[c];
      for (size_t i = 0; i < 65536; ++i) Put(b.data(), i, value);
      for (const ReduceOp op : OpsOf(type)) ExpectSameBits(TwoSources(type, op, a, b, 3));
    }
    ExpectSameScaling(type, a);
  }
}

TEST(ReduceKernelTest, EveryTypeHasTheReducersBitsForRandomAndSpecialValues) {
  constexpr size_t kCount = 5000;
  for (uint64_t seed = 1; seed <= Rounds(kSanitized ? 1 : 3, 300); ++seed) {
    std::mt19937_64 random(seed);
    for (const auto& [type, op] : KernelReductions()) {
      const Bytes a = RandomElements(type, kCount, &random);
      const Bytes b = RandomElements(type, kCount, &random);
      for (const uint32_t divisor : {1u, 2u, 3u, 8u, 1000u}) ExpectSameBits(TwoSources(type, op, a, b, divisor));
      if (op == ReduceOp::kSum) ExpectSameScaling(type, a);
    }
  }
}

// An operation of a random form on places with random offsets, whose surroundings must stay as they are.
class RandomForm {
 public:
  RandomForm(DataType type, ReduceOp op, std::mt19937_64* random) : random_(*random) {
    element_ = TypeBytes(type);
    op_.type = type;
    op_.op = op;
    op_.count = Below(200);
    op_.num_sources = static_cast<int>(1 + Below(5));
    if (op == ReduceOp::kAvg) op_.divisor = static_cast<uint32_t>(1 + Below(5));
    if (op == ReduceOp::kSum && Below(2) == 0) {
      op_.scaled_source = static_cast<int>(Below(static_cast<uint64_t>(op_.num_sources)));
      op_.custom.factor = 3;
    }
    // Half of the time all places have the same alignment, so that vectors are used.
    same_ = Below(2) == 0 ? static_cast<int64_t>(Below(16)) : -1;
    for (int i = 0; i < op_.num_sources; ++i) sources_.push_back(NewPlace(&memory_));
    has_two_ = Below(2) == 0;
    is_in_place_ = Below(3) == 0;
  }

  // The destinations and all around them, after the operation as `run` does it.
  template <class Run>
  std::vector<Bytes> Results(Run run) {
    std::vector<Bytes> memory = memory_;
    std::vector<Bytes> outputs = {Bytes(kBytes, std::byte{0x11}), Bytes(kBytes, std::byte{0x22})};
    std::vector<const std::byte*> sources;
    for (size_t i = 0; i < sources_.size(); ++i) sources.push_back(memory[i].data() + sources_[i]);
    SliceOp op = op_;
    op.src = sources.data();
    for (size_t i = 0; i < 2 && i < sources.size(); ++i) op.inline_src[i] = sources[i];
    op.dst[0] = is_in_place_ ? memory[0].data() + sources_[0] : outputs[0].data() + At(0);
    if (has_two_) op.dst[1] = outputs[1].data() + At(1);
    run(op);
    memory.insert(memory.end(), outputs.begin(), outputs.end());
    return memory;
  }

 private:
  static constexpr size_t kBytes = 200 * kMostElementBytes + 64;

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  size_t NewPlace(std::vector<Bytes>* memory) {
    memory->push_back(RandomElements(op_.type, kBytes / element_, &random_));
    return Offset();
  }
  size_t Offset() {
    const size_t alignment = TypeAlignment(op_.type);
    return (same_ >= 0 ? static_cast<uint64_t>(same_) : Below(16)) / alignment * alignment;
  }
  // Drawn once, used in both runs.
  size_t At(int i) {
    if (offsets_.empty()) offsets_ = {Offset(), Offset()};
    return offsets_[static_cast<size_t>(i)];
  }

  std::mt19937_64& random_;
  size_t element_ = 0;
  SliceOp op_;
  std::vector<Bytes> memory_;
  std::vector<size_t> sources_;
  std::vector<size_t> offsets_;
  int64_t same_ = -1;
  bool has_two_ = false;
  bool is_in_place_ = false;
};

TEST(ReduceKernelTest, EveryFormHasTheReducersBitsAndTouchesNothingElse) {
  constexpr Grid kGrids[] = {{1, 1}, {1, 7}, {2, 16}, {3, 64}};
  for (uint64_t seed = 1; seed <= Rounds(300, 20'000); ++seed) {
    std::mt19937_64 random(seed);
    for (const auto& [type, op] : KernelReductions()) {
      const Grid grid = kGrids[random() % std::size(kGrids)];
      RandomForm form(type, op, &random);
      const std::vector<Bytes> expected = form.Results([](const SliceOp& slice) { RunOnHost(slice); });
      const std::vector<Bytes> result = form.Results([&](const SliceOp& slice) { RunKernel(slice, grid); });
      ASSERT_TRUE(result == expected) << "seed " << seed << ", " << TypeName(type) << " " << OpName(op);
    }
  }
}

TEST(ReduceKernelTest, PlacesBeyondFourBillionElementsAreReached) {
  // Only the pages that one thread touches ever exist.
  constexpr uint64_t kThreads = uint64_t{1} << 33;
  constexpr uint64_t kThread = (uint64_t{1} << 32) + 5;
  constexpr size_t kBytes = (kThreads + 3) * sizeof(Vector);
  void* const memory =
      mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "this machine maps no 256 GiB";
  auto* const source = static_cast<std::byte*>(memory);
  KernelSlice slice;
  slice.src[0] = source;
  slice.dst[0] = source + kBytes;
  slice.num_sources = 1;
  slice.count = kBytes;
  const size_t at = kThread * sizeof(Vector);
  std::memset(source + at - sizeof(Vector), 0x77, 3 * sizeof(Vector));
  SliceThread<ElementOf<DataType::kUint8>, Sum>(slice, slice.src, nullptr, kThread, kThreads).Run();
  EXPECT_EQ(slice.dst[0][at - 1], std::byte{0});
  for (size_t i = 0; i < sizeof(Vector); ++i) EXPECT_EQ(slice.dst[0][at + i], std::byte{0x77}) << i;
  EXPECT_EQ(slice.dst[0][at + sizeof(Vector)], std::byte{0});
  munmap(memory, 2 * kBytes);
}

// As in one fold for many ranks: of some forms, with one destination that is aligned otherwise.
TEST(ReduceKernelTest, ResultsGoToManyDestinations) {
  constexpr size_t kElements = 1000;
  constexpr size_t kBytes = kElements * sizeof(float);
  std::mt19937_64 random(1);
  for (const int sources : {1, 2, 7}) {
    for (const int destinations : {2, 3, 16}) {
      std::vector<Bytes> in(static_cast<size_t>(sources), Bytes(kBytes));
      for (Bytes& each : in) {
        for (std::byte& byte : each) byte = static_cast<std::byte>(random());
      }
      std::vector<Bytes> out(static_cast<size_t>(destinations), Bytes(kBytes + sizeof(float)));
      std::vector<const std::byte*> from;
      for (const Bytes& each : in) from.push_back(each.data());
      std::vector<std::byte*> to;
      for (Bytes& each : out) to.push_back(each.data());
      if (destinations == 16) to.back() += sizeof(float);
      SliceOp op;
      op.src = from.data();
      op.inline_src[0] = from[0];
      op.inline_src[1] = sources > 1 ? from[1] : nullptr;
      op.num_sources = sources;
      op.dst[0] = to[0];
      op.dst[1] = to[1];
      op.more = to.data() + 2;
      op.num_more = destinations - 2;
      op.count = kElements;
      const Bytes expected = FoldByOracle(op.type, op.op, 0, in, kElements);
      RunKernel(op, {3, 32});
      for (const std::byte* const each : to) EXPECT_EQ(std::memcmp(each, expected.data(), kBytes), 0);
      for (std::byte* const each : to) std::memset(each, 0, kBytes);
      RunOnHost(op);
      for (const std::byte* const each : to) EXPECT_EQ(std::memcmp(each, expected.data(), kBytes), 0);
    }
  }
}

TEST(ReduceKernelTest, AnUnknownNameIsRefused) {
  EXPECT_FALSE(RunSliceOnHost("annulus_float32_avg", KernelSlice(), 1, 1));
}

}  // namespace
}  // namespace annulus::cuda
