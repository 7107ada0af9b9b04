// Streaming stores change nothing but the way to memory: the same bytes, and none beside them, for every type,
// operation, form, alignment and length.
#include "collectives/reduce/reducer_stream.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "collectives/reduce/reducer.h"
#include "tests/collectives/reduce/reducer_oracle.h"

namespace annulus {
namespace {

constexpr size_t kLine = 64;
constexpr std::byte kUntouched{0x5a};

// Bytes that begin `offset` behind the start of a cache line, with a margin on both sides.
class Buffer {
 public:
  Buffer(size_t bytes, size_t offset) : memory_(bytes + 4 * kLine, kUntouched), bytes_(bytes) {
    const auto misaligned = reinterpret_cast<uintptr_t>(memory_.data()) % kLine;
    begin_ = 2 * kLine - misaligned + offset;
  }
  std::byte* data() { return memory_.data() + begin_; }
  Bytes Content() { return Bytes(data(), data() + bytes_); }
  bool MarginsUntouched() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      const bool inside = i >= begin_ && i < begin_ + bytes_;
      if (!inside && memory_[i] != kUntouched) return false;
    }
    return true;
  }

 private:
  Bytes memory_;
  const size_t bytes_;
  size_t begin_ = 0;
};

class ReducerStreamTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(ReducerStreamTest, CopiesEveryAlignmentAndLength) {
  std::mt19937_64 random(1);
  for (size_t to = 0; to < kLine; to += 7) {
    for (const size_t bytes : {0, 1, 3, 63, 64, 65, 127, 128, 200, 4096, 5001}) {
      Buffer source(bytes, (to * 5) % kLine);
      const Bytes content = RandomElements(DataType::kUint8, bytes, &random);
      if (bytes > 0) std::memcpy(source.data(), content.data(), bytes);
      Buffer target(bytes, to);
      StreamBytes(target.data(), source.data(), bytes);
      FenceStreams();
      EXPECT_EQ(target.Content(), content) << bytes << " bytes to " << to;
      EXPECT_TRUE(target.MarginsUntouched()) << bytes << " bytes to " << to;
    }
  }
}

struct Form {
  int sources;
  int scaled = -1;
  bool divides = false;
  bool two = true;
};

// Runs `op` on `sources` with and without streaming of each destination, at odd places.
void Compare(SliceOp op, const Form& form, size_t count, std::mt19937_64* random) {
  const size_t element = TypeBytes(op.type);
  const size_t bytes = count * element;
  std::vector<Bytes> sources;
  std::vector<const std::byte*> pointers;
  for (int i = 0; i < form.sources; ++i) sources.push_back(RandomElements(op.type, count, random));
  for (const Bytes& source : sources) pointers.push_back(source.data());
  op.src = pointers.data();
  for (int i = 0; i < std::min(form.sources, 2); ++i) op.inline_src[i] = pointers[i];
  op.num_sources = form.sources;
  op.scaled_source = form.scaled;
  op.custom.scales = form.scaled >= 0;
  op.custom.factor = 3;
  op.divisor = form.divides ? 3 : 0;
  op.count = count;
  const auto run = [&](bool first, bool second, size_t offset) {
    Buffer to[2] = {Buffer(bytes, offset), Buffer(bytes, 0)};
    SliceOp streamed = op;
    streamed.dst[0] = to[0].data();
    streamed.dst[1] = form.two ? to[1].data() : nullptr;
    streamed.streams[0] = first;
    streamed.streams[1] = second;
    RunOnHost(streamed);
    EXPECT_TRUE(to[0].MarginsUntouched() && to[1].MarginsUntouched());
    if (form.two) {
      EXPECT_EQ(to[0].Content(), to[1].Content());
    }
    return to[0].Content();
  };
  const Bytes expected = run(false, false, 0);
  for (const size_t offset : {size_t{0}, element, 5 * element % kLine}) {
    for (const auto& [first, second] : {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
      EXPECT_EQ(run(first, second && form.two, offset), expected)
          << TypeName(op.type) << " " << OpName(op.op) << ", " << form.sources << " sources, " << count << " elements";
    }
  }
}

TEST_P(ReducerStreamTest, GivesTheSameBits) {
  std::mt19937_64 random(2);
  for (const auto [type, op] : AllReductions()) {
    SliceOp slice;
    slice.type = type;
    slice.op = op;
    const bool average = op == ReduceOp::kAvg;
    std::vector<Form> forms = {Form{.sources = 1}, Form{.sources = 2, .divides = average}, Form{.sources = 3},
                               Form{.sources = 2, .divides = average, .two = false}};
    if (type != DataType::kBool) {
      forms.push_back(Form{.sources = 2, .scaled = 1});
      forms.push_back(Form{.sources = 1, .scaled = 0, .two = false});
    }
    for (const Form& form : forms) {
      for (const size_t count : {1, 17, 1024, 2311}) Compare(slice, form, count, &random);
    }
  }
}

TEST_P(ReducerStreamTest, ADestinationMayBeASource) {
  std::mt19937_64 random(3);
  constexpr size_t kCount = 3000;
  for (const bool other : {false, true}) {
    const Bytes left = RandomElements(DataType::kFloat32, kCount, &random);
    Bytes right = RandomElements(DataType::kFloat32, kCount, &random);
    const Bytes expected = FoldByOracle(DataType::kFloat32, ReduceOp::kSum, 0, {left, right}, kCount);
    Bytes slot(left.size());
    SliceOp op;
    op.inline_src[0] = left.data();
    op.inline_src[1] = right.data();
    op.num_sources = 2;
    op.count = kCount;
    op.dst[0] = right.data();
    op.dst[1] = slot.data();
    op.streams[0] = other;
    op.streams[1] = true;
    RunOnHost(op);
    EXPECT_EQ(right, expected);
    EXPECT_EQ(slot, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ReducerStreamTest, testing::ValuesIn(ReducerTargets()),
                         [](const testing::TestParamInfo<int64_t>& info) {
                           return std::string(hwy::TargetName(info.param));
                         });

}  // namespace
}  // namespace annulus
