// Copying at full speed, and a flag page per rank that the next rank maps through /proc.
//
// Threads: see perf_limit_copy.h. A flag is written by its rank and read by the next one, in another process.
#include "bench/perf/perf_limit_copy.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <random>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/clock.h"

namespace annulus::perf {
namespace {

// Below this the caches hold everything, and stores that go around them can only lose.
constexpr size_t kStreamingBytes = size_t{1} << 20;
constexpr int kSpins = 200;  // Before the core is offered to other ranks, which may be more than the cores.
constexpr Nanoseconds kPatience = 20 * kSecond;

enum Variant { kPlain = 0, kStreaming = 1 };

#if defined(__SSE2__)
constexpr int kVariants = 2;

// A copy whose stores go around the caches; both buffers are page-aligned.
void StreamingCopy(uint8_t* to, const uint8_t* from, size_t bytes) {
  constexpr size_t kLine = 64;
  const size_t whole = bytes / kLine * kLine;
  for (size_t i = 0; i < whole; i += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + i);
    auto* target = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_load_si128(source), b = _mm_load_si128(source + 1);
    const __m128i c = _mm_load_si128(source + 2), d = _mm_load_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + whole, from + whole, bytes - whole);
  _mm_sfence();
}
#else
constexpr int kVariants = 1;

void StreamingCopy(uint8_t* to, const uint8_t* from, size_t bytes) { std::memcpy(to, from, bytes); }
#endif

}  // namespace

struct CopyProbe::FlagPage {
  std::atomic<uint64_t> flag{0};
  uint64_t token = 0;  // Shows that the page is the one that the neighbour announced.
};

Status CopyProbe::Create(Group& group, Arena arena, std::unique_ptr<Probe>* probe) {
  std::unique_ptr<CopyProbe> created(new CopyProbe(arena));
  ANNULUS_RETURN_IF_ERROR(created->ShareFlags(group));
  *probe = std::move(created);
  return Status();
}

CopyProbe::~CopyProbe() {
  for (FlagPage* page : {own_, prev_}) {
    if (page != nullptr) munmap(page, sizeof(FlagPage));
  }
}

Status CopyProbe::ShareFlags(Group& group) {
  const auto map = [](int file) -> FlagPage* {
    if (file < 0) return nullptr;
    void* const page = mmap(nullptr, sizeof(FlagPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return page == MAP_FAILED ? nullptr : static_cast<FlagPage*>(page);
  };
  const int file = memfd_create("annulus-perf-flag", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, sizeof(FlagPage)) == 0) own_ = map(file);
  if (own_ != nullptr) {
    new (own_) FlagPage();
    own_->token = (uint64_t{std::random_device()()} << 32) | std::random_device()();
  }
  const uint64_t token = own_ != nullptr ? own_->token : 0;
  const int32_t mine[] = {getpid(), file, static_cast<int32_t>(token), static_cast<int32_t>(token >> 32)};
  std::vector<int32_t> all;
  ANNULUS_RETURN_IF_ERROR(group.Allgather(mine, &all));

  const int32_t* const prev = &all[static_cast<size_t>((group.rank() + group.size() - 1) % group.size()) * 4];
  const std::string path = "/proc/" + std::to_string(prev[0]) + "/fd/" + std::to_string(prev[1]);
  const int prev_file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  prev_ = map(prev_file);
  const uint64_t expected = static_cast<uint32_t>(prev[2]) | (uint64_t{static_cast<uint32_t>(prev[3])} << 32);
  double shared = own_ != nullptr && prev_ != nullptr && prev_->token == expected ? 1 : 0;
  ANNULUS_RETURN_IF_ERROR(group.Min({&shared, 1}));  // Also: everybody has opened before anybody closes.
  if (file >= 0) close(file);
  if (prev_file >= 0) close(prev_file);
  if (shared == 0) {
    for (FlagPage** page : {&own_, &prev_}) {
      if (*page != nullptr) munmap(*page, sizeof(FlagPage));
      *page = nullptr;
    }
  }
  return Status();
}

size_t CopyProbe::PassBytes(Kind kind, size_t bytes, int nranks) const {
  // What is already in its place is not moved: one rank's part of a reduce-scatter or allgather.
  const bool split = kind == Kind::kReduceScatter || kind == Kind::kAllgather;
  return split ? bytes / static_cast<size_t>(nranks) * static_cast<size_t>(nranks - 1) : bytes;
}

int CopyProbe::Variants(size_t pass_bytes) const { return pass_bytes >= kStreamingBytes ? kVariants : 1; }

Status CopyProbe::Pass(Kind, size_t pass_bytes, int variant) {
  const size_t bytes = std::min(pass_bytes, arena_.bytes);
  if (variant == kStreaming) {
    StreamingCopy(arena_.output, arena_.input, bytes);
  } else {
    std::memcpy(arena_.output, arena_.input, bytes);
  }
  // The compiler may not drop a copy that nobody reads.
  asm volatile("" ::: "memory");
  ++passes_;
  if (own_ == nullptr) return Status();
  own_->flag.store(passes_, std::memory_order_release);
  return WaitForPrevious();
}

Status CopyProbe::WaitForPrevious() const {
  const Deadline deadline = DeadlineAfter(kPatience);
  for (int spins = 1; prev_->flag.load(std::memory_order_acquire) < passes_; ++spins) {
    if (spins % kSpins != 0) continue;
    sched_yield();
    if (Now() > deadline) return {Code::kTimeout, "limit probe: the previous rank raised no flag"};
  }
  return Status();
}

std::string CopyProbe::Description() const {
  const std::string flags = own_ != nullptr ? ", then waits for a flag of its neighbour"
                                            : " (the ranks may not map each other's memory: without a flag)";
  return "memory: every rank copies its input to its output, all ranks at once" + flags;
}

}  // namespace annulus::perf
