// The bits of an element depend on its operands alone: not on its place, the alignment, the form of the call, the
// instruction set, or the caller's floating-point environment. reducer_test.cc says which bits are right.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <cfenv>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "collectives/reduce/reducer.h"
#include "tests/collectives/reduce/reducer_oracle.h"
#include "tests/soak/rounds.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace annulus {
namespace {

constexpr size_t kMaxCount = 300;
constexpr size_t kGuardBytes = 64;
constexpr size_t kMaxSources = 9;
constexpr size_t kStep = kSanitized ? 4 : 1;  // One, more than two, and the most.
constexpr std::byte kGuard{0x5a};

using Case = Reduction;

std::string Name(const Case& c) { return std::string(TypeName(c.type)) + " " + OpName(c.op); }

// Random bits: every third element has only its lowest bits set, a subnormal when it is a float.
Bytes MakeSource(DataType type, uint64_t seed) {
  std::mt19937_64 random(seed);
  const size_t element = TypeBytes(type);
  Bytes bytes(kMaxCount * element);
  for (size_t i = 0; i < kMaxCount; ++i) {
    const uint64_t value[] = {i % 3 == 0 ? random() % 1000 : random(), random()};
    std::memcpy(&bytes[i * element], value, element);
  }
  return bytes;
}

std::vector<Bytes> MakeSources(DataType type) {
  std::vector<Bytes> sources;
  for (size_t s = 0; s < kMaxSources; ++s) sources.push_back(MakeSource(type, s + 1));
  return sources;
}

void Reduce(const Case& c, const std::vector<const std::byte*>& sources, size_t count, std::byte* first,
            std::byte* second) {
  SliceOp op;
  op.dst[0] = first;
  op.dst[1] = second;
  op.src = sources.data();
  for (size_t s = 0; s < std::min<size_t>(2, sources.size()); ++s) op.inline_src[s] = sources[s];
  op.num_sources = static_cast<int>(sources.size());
  op.count = count;
  op.type = c.type;
  op.op = c.op;
  op.divisor = c.op == ReduceOp::kAvg ? 3 : 0;
  RunOnHost(op);
}

// Each element reduced by a call of its own.
Bytes OneByOne(const Case& c, const std::vector<Bytes>& sources, size_t num_sources) {
  const size_t element = TypeBytes(c.type);
  Bytes result(kMaxCount * element);
  std::vector<const std::byte*> pointers(num_sources);
  for (size_t i = 0; i < kMaxCount; ++i) {
    for (size_t s = 0; s < num_sources; ++s) pointers[s] = &sources[s][i * element];
    Reduce(c, pointers, 1, &result[i * element], nullptr);
  }
  return result;
}

// Elements at any distance from an aligned address, between guards.
class Guarded {
 public:
  Guarded() { memory_.fill(kGuard); }

  std::byte* Place(size_t shift_bytes, size_t bytes) {
    memory_.fill(kGuard);
    begin_ = kGuardBytes + shift_bytes;
    bytes_ = bytes;
    return &memory_[begin_];
  }
  std::byte* Place(size_t shift_bytes, const Bytes& content, size_t bytes) {
    std::byte* at = Place(shift_bytes, bytes);
    std::memcpy(at, content.data(), bytes);
    return at;
  }
  bool Holds(const Bytes& expected) const { return std::memcmp(&memory_[begin_], expected.data(), bytes_) == 0; }
  bool GuardsAreIntact() const {
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    const auto end = memory_.begin() + begin_ + bytes_;
    return std::all_of(memory_.begin(), memory_.begin() + begin_, is_guard) &&
           std::all_of(end, end + kGuardBytes, is_guard);
  }

 private:
  alignas(64) std::array<std::byte, 3 * kGuardBytes + kMaxCount * 16> memory_;
  size_t begin_ = 0;
  size_t bytes_ = 0;
};

class ReducerDeterminismTest : public testing::Test {
 protected:
  ~ReducerDeterminismTest() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_F(ReducerDeterminismTest, EveryInstructionSetGivesTheSameBits) {
  ASSERT_FALSE(ReducerTargets().empty());
  for (const Case& c : AllReductions()) {
    const std::vector<Bytes> sources = MakeSources(c.type);
    for (size_t num_sources = 1; num_sources <= kMaxSources; num_sources += kStep) {
      hwy::SetSupportedTargetsForTest(0);
      const Bytes expected = OneByOne(c, sources, num_sources);
      std::vector<const std::byte*> pointers;
      for (size_t s = 0; s < num_sources; ++s) pointers.push_back(sources[s].data());
      for (int64_t target : ReducerTargets()) {
        hwy::SetSupportedTargetsForTest(target);
        Bytes result(expected.size());
        Reduce(c, pointers, kMaxCount, result.data(), nullptr);
        ASSERT_EQ(result, expected) << Name(c) << ", " << num_sources << " sources on " << HostReducerTarget();
      }
    }
  }
}

TEST_F(ReducerDeterminismTest, EveryCountAndAlignmentGivesTheSameBitsAndStaysInside) {
  for (int64_t target : ReducerTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    for (const Case& c : AllReductions()) {
      const size_t element = TypeBytes(c.type);
      const std::vector<Bytes> sources = MakeSources(c.type);
      const Bytes expected = OneByOne(c, sources, 2);
      Guarded a, b, first, second;
      for (size_t count = 0; count <= kMaxCount; ++count) {
        const size_t bytes = count * element;
        // Each buffer passes through all its alignments as the count grows, at a pace of its own.
        const auto shift = [&](size_t pace) { return count * pace * element % kGuardBytes; };
        const std::byte* left = a.Place(shift(1), sources[0], bytes);
        const std::byte* right = b.Place(shift(3), sources[1], bytes);
        std::byte* to = first.Place(shift(5), bytes);
        std::byte* also = second.Place(shift(7), bytes);
        Reduce(c, {left, right}, count, to, count % 2 ? also : nullptr);
        SCOPED_TRACE(testing::Message() << Name(c) << ", count " << count << " on " << HostReducerTarget());
        ASSERT_TRUE(first.Holds(expected) && first.GuardsAreIntact());
        ASSERT_TRUE(count % 2 == 0 || second.Holds(expected));
        ASSERT_TRUE(second.GuardsAreIntact());
        ASSERT_TRUE(a.Holds(sources[0]) && b.Holds(sources[1])) << "a source was written";
      }
    }
  }
}

TEST_F(ReducerDeterminismTest, EveryAlignmentOfEachBufferGivesTheSameBits) {
  constexpr size_t kCount = 70;
  for (int64_t target : ReducerTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    for (const Case& c : AllReductions()) {
      const std::vector<Bytes> sources = MakeSources(c.type);
      const Bytes expected = OneByOne(c, sources, 2);
      const size_t bytes = kCount * TypeBytes(c.type);
      Guarded a, b, to;
      for (int moved = 0; moved < 3; ++moved) {
        for (size_t shift = 0; shift < kGuardBytes; shift += TypeBytes(c.type)) {
          const std::byte* left = a.Place(moved == 0 ? shift : 0, sources[0], bytes);
          const std::byte* right = b.Place(moved == 1 ? shift : 0, sources[1], bytes);
          Reduce(c, {left, right}, kCount, to.Place(moved == 2 ? shift : 0, bytes), nullptr);
          ASSERT_TRUE(to.Holds(expected) && to.GuardsAreIntact())
              << Name(c) << ", buffer " << moved << " shifted by " << shift << " on " << HostReducerTarget();
        }
      }
    }
  }
}

TEST_F(ReducerDeterminismTest, InPlaceOfAnySourceGivesTheSameBits) {
  for (int64_t target : ReducerTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    for (const Case& c : AllReductions()) {
      const std::vector<Bytes> sources = MakeSources(c.type);
      for (size_t num_sources = 1; num_sources <= kMaxSources; num_sources += kStep) {
        const Bytes expected = OneByOne(c, sources, num_sources);
        for (size_t place = 0; place < num_sources; ++place) {
          for (bool two : {false, true}) {
            std::vector<Bytes> buffers(sources.begin(), sources.begin() + num_sources);
            std::vector<const std::byte*> pointers;
            for (const Bytes& buffer : buffers) pointers.push_back(buffer.data());
            Bytes second(expected.size());
            Reduce(c, pointers, kMaxCount, buffers[place].data(), two ? second.data() : nullptr);
            ASSERT_TRUE(buffers[place] == expected && (!two || second == expected))
                << Name(c) << " of " << num_sources << " in place of " << place << " on " << HostReducerTarget();
          }
        }
      }
    }
  }
}

// Flush-to-zero is no part of the C standard; the rounding directions are.
std::vector<void (*)()> Environments() {
  std::vector<void (*)()> environments = {[] { std::fesetround(FE_UPWARD); }, [] { std::fesetround(FE_DOWNWARD); },
                                          [] { std::fesetround(FE_TOWARDZERO); }};
#if defined(__SSE__)
  constexpr unsigned kFlushToZero = 0x8000;
  constexpr unsigned kSubnormalsAreZero = 0x0040;
  environments.push_back([] { _mm_setcsr(_mm_getcsr() | kFlushToZero | kSubnormalsAreZero); });
#endif
  return environments;
}

TEST_F(ReducerDeterminismTest, TheCallersFloatEnvironmentIsNeitherUsedNorChanged) {
  for (int64_t target : ReducerTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    for (const Case& c : AllReductions()) {
      const std::vector<Bytes> sources = MakeSources(c.type);
      const Bytes expected = OneByOne(c, sources, 3);
      for (size_t e = 0; e < Environments().size(); ++e) {
        Bytes result(expected.size());
        std::fenv_t saved;
        std::fegetenv(&saved);
        Environments()[e]();
        const int rounding = std::fegetround();
#if defined(__SSE__)
        const unsigned control = _mm_getcsr();
#endif
        Reduce(c, {sources[0].data(), sources[1].data(), sources[2].data()}, kMaxCount, result.data(), nullptr);
        EXPECT_EQ(std::fegetround(), rounding);
#if defined(__SSE__)
        EXPECT_EQ(_mm_getcsr(), control);
#endif
        std::fesetenv(&saved);
        ASSERT_EQ(result, expected) << Name(c) << ", environment " << e << " on " << HostReducerTarget();
      }
    }
  }
}

TEST_F(ReducerDeterminismTest, NoElementsNeedNoBuffers) {
  for (int num_sources : {1, 2, 3}) {
    const std::byte* none[3] = {};
    SliceOp op;
    op.src = none;
    op.num_sources = num_sources;
    RunOnHost(op);
  }
}

}  // namespace
}  // namespace annulus
