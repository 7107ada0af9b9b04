// Counts beyond 2^31 elements, and 2^32 bytes, over real links: an offset cut to 32 bits gives a wrong result here.
//
// Two ranks of 4 GiB each would need 16 GiB. So the inputs, and rank 0's output, are a small file mapped again and
// again: all ranks' elements repeat with the file's length, and so do the results. The length is a prime number of
// pages, so a wrong offset shows. Rank 1's output is real memory, and all of it is checked.

#include <annulus.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/collectives/harness/c_call.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr int kRanks = 2;
constexpr size_t kPageBytes = 4096;
constexpr size_t kPatternBytes = 4099 * kPageBytes;
constexpr size_t kPatternElements = kPatternBytes / 2;  // Number of bfloat16 elements.
// One rank's part of allgather and reduce_scatter is a multiple of the pattern, so that all parts are alike.
constexpr size_t kPart = 128 * kPatternElements;
constexpr size_t kCount = kRanks * kPart + 12345;
constexpr size_t kBytes = 2 * kCount;
static_assert(kRanks * kPart > size_t{1} << 31);
constexpr char kInSoak[] = "./test soak runs it";
constexpr uint64_t kNeededMemory = uint64_t{8} << 30;

uint64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    uint64_t kilobytes = 0;
    if (word == "MemAvailable:" && file >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

size_t Mapped() { return (kBytes + kPatternBytes - 1) / kPatternBytes * kPatternBytes; }

// The bfloat16 of a small integer, exactly.
uint16_t BFloat16(int value) {
  const float wide = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &wide, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

// Every rank's input is this pattern, repeated; never 0. `factor` times it is exact in bfloat16.
std::vector<uint16_t> Pattern(int factor) {
  std::vector<uint16_t> pattern(kPatternElements);
  uint32_t state = 1;
  for (uint16_t& element : pattern) {
    state = state * 1664525 + 1013904223;
    element = BFloat16(factor * static_cast<int>(1 + (state >> 24) % 50));
  }
  return pattern;
}

// kBytes of address space, for bfloat16 elements.
class Buffer {
 public:
  // Real memory, zero. In huge pages where there are any: a million small ones take seconds each time.
  Buffer() : data_(Reserve()) {
    ANNULUS_CHECK(mprotect(data_, Mapped(), PROT_READ | PROT_WRITE) == 0);
    madvise(data_, Mapped(), MADV_HUGEPAGE);
  }
  // `pattern`, repeated; what is written in one place appears in all.
  explicit Buffer(const std::vector<uint16_t>& pattern) : data_(Reserve()) {
    constexpr int kShared = MAP_SHARED | MAP_FIXED | MAP_POPULATE;
    const int fd = memfd_create("pattern", MFD_CLOEXEC);
    ANNULUS_CHECK(fd >= 0 && ftruncate(fd, kPatternBytes) == 0);
    for (size_t offset = 0; offset < Mapped(); offset += kPatternBytes) {
      void* place = data_ + offset;
      ANNULUS_CHECK(mmap(place, kPatternBytes, PROT_READ | PROT_WRITE, kShared, fd, 0) == place);
    }
    close(fd);
    std::memcpy(data_, pattern.data(), kPatternBytes);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { munmap(data_, Mapped()); }

  std::byte* data() const { return data_; }
  // Real memory becomes zero again.
  void Clear() { ANNULUS_CHECK(madvise(data_, Mapped(), MADV_DONTNEED) == 0); }

  // Whether the first `bytes` are `pattern`, repeated from its start.
  bool Is(const std::vector<uint16_t>& pattern, size_t bytes) const {
    for (size_t offset = 0; offset < bytes; offset += kPatternBytes) {
      if (std::memcmp(data_ + offset, pattern.data(), std::min(kPatternBytes, bytes - offset)) != 0) return false;
    }
    return true;
  }

 private:
  static std::byte* Reserve() {
    void* data = mmap(nullptr, Mapped(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ANNULUS_CHECK(data != MAP_FAILED);
    return static_cast<std::byte*>(data);
  }

  std::byte* const data_;
};

class HugeCountTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (AvailableMemory() < kNeededMemory) GTEST_SKIP() << "needs 8 GiB of available memory";
  }

  // Whether the test runs over this link: over `usual` each time, over any in a soak. An allreduce runs over both each
  // time, and the others have nothing of their own in either.
  bool IsDue(const std::string& usual) const { return GetParam() == usual || Rounds(1, 2) == 2; }

  // Runs `call` on two ranks; rank 1's output is left in real_.
  void Run(const Call& call) {
    real_.Clear();
    ClusterConfig config;
    config.nranks = kRanks;
    config.transport = GetParam();
    config.timeout_ms = 200000;
    Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
      EXPECT_EQ(RunCall(comm, call, input_.data(), rank == 1 ? real_.data() : shared_.data()), ANNULUS_OK);
    });
  }

  Call MakeCall(CollectiveKind kind, size_t count) const {
    Call call;
    call.kind = kind;
    call.type = DataType::kBFloat16;
    call.count = count;
    return call;
  }

  // Made once for all tests, since two million pages are mapped.
  struct Memory {
    std::vector<uint16_t> once = Pattern(1);
    std::vector<uint16_t> twice = Pattern(2);
    Buffer input{once};
    Buffer shared{once};
    Buffer real;
  };
  static Memory& Made() {
    static Memory memory;
    return memory;
  }

  const std::vector<uint16_t>& once_ = Made().once;
  const std::vector<uint16_t>& twice_ = Made().twice;
  const Buffer& input_ = Made().input;
  const Buffer& shared_ = Made().shared;
  Buffer& real_ = Made().real;
};

TEST_P(HugeCountTest, Allreduce) {
  if (!IsDue("tcp")) GTEST_SKIP() << kInSoak;
  Run(MakeCall(CollectiveKind::kAllreduce, kCount));
  EXPECT_TRUE(real_.Is(twice_, kBytes));
}

TEST_P(HugeCountTest, Broadcast) {
  if (!IsDue("tcp")) GTEST_SKIP() << kInSoak;
  Run(MakeCall(CollectiveKind::kBroadcast, kCount));
  EXPECT_TRUE(real_.Is(once_, kBytes));
}

TEST_P(HugeCountTest, Reduce) {
  if (!IsDue("shm")) GTEST_SKIP() << kInSoak;
  Call call = MakeCall(CollectiveKind::kReduce, kCount);
  call.root = 1;
  Run(call);
  EXPECT_TRUE(real_.Is(twice_, kBytes));
}

TEST_P(HugeCountTest, Allgather) {
  if (!IsDue("tcp")) GTEST_SKIP() << kInSoak;
  Run(MakeCall(CollectiveKind::kAllgather, kPart));
  EXPECT_TRUE(real_.Is(once_, kRanks * kPart * 2));
}

TEST_P(HugeCountTest, ReduceScatter) {
  if (!IsDue("shm")) GTEST_SKIP() << kInSoak;
  Run(MakeCall(CollectiveKind::kReduceScatter, kPart));
  EXPECT_TRUE(real_.Is(twice_, kPart * 2));
}

INSTANTIATE_TEST_SUITE_P(Links, HugeCountTest, testing::Values("shm", "tcp"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

}  // namespace
}  // namespace annulus
