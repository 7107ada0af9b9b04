// Copying at full speed, and a flag page per rank that its neighbours map through /proc.
//
// Threads: see perf_limit_copy.h. A flag is written by its rank and read by its neighbours, in other
// processes.
#include "bench/perf/limit/perf_limit_copy.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
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

// A page of type T in that file; null when there is none.
template <typename T>
T* Map(int file) {
  if (file < 0) return nullptr;
  void* const page = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return page == MAP_FAILED ? nullptr : static_cast<T*>(page);
}

}  // namespace

struct CopyProbe::FlagPage {
  std::atomic<uint64_t> flag{0};
  uint64_t token = 0;  // Shows that the page is the one that the neighbour announced.
};

Status CopyProbe::Create(Group& group, Arena arena, std::unique_ptr<Probe>* probe) {
  std::unique_ptr<CopyProbe> created(new CopyProbe(group, arena));
  ANNULUS_RETURN_IF_ERROR(created->ShareFlags(group));
  *probe = std::move(created);
  return Status();
}

CopyProbe::~CopyProbe() {
  for (FlagPage* page : {own_, prev_, next_}) {
    if (page != nullptr) munmap(page, sizeof(FlagPage));
  }
}

CopyProbe::FlagPage* CopyProbe::MapPeer(const int32_t* words) {
  const std::string path = "/proc/" + std::to_string(words[0]) + "/fd/" + std::to_string(words[1]);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  auto* const page = Map<FlagPage>(file);
  if (file >= 0) close(file);
  const uint64_t expected = static_cast<uint32_t>(words[2]) | (uint64_t{static_cast<uint32_t>(words[3])} << 32);
  if (page == nullptr || page->token == expected) return page;
  munmap(page, sizeof(FlagPage));
  return nullptr;
}

Status CopyProbe::ShareFlags(Group& group) {
  const int file = memfd_create("annulus-perf-flag", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, sizeof(FlagPage)) == 0) own_ = Map<FlagPage>(file);
  if (own_ != nullptr) {
    new (own_) FlagPage();
    own_->token = (uint64_t{std::random_device()()} << 32) | std::random_device()();
  }
  const uint64_t token = own_ != nullptr ? own_->token : 0;
  const int32_t mine[] = {getpid(), file, static_cast<int32_t>(token), static_cast<int32_t>(token >> 32)};
  std::vector<int32_t> all;
  ANNULUS_RETURN_IF_ERROR(group.Allgather(mine, &all));

  const auto words_of = [&](int rank) { return &all[static_cast<size_t>(rank % nranks_) * std::size(mine)]; };
  prev_ = MapPeer(words_of(rank_ + nranks_ - 1));
  next_ = MapPeer(words_of(rank_ + 1));
  double shared = own_ != nullptr && prev_ != nullptr && next_ != nullptr ? 1 : 0;
  ANNULUS_RETURN_IF_ERROR(group.Min({&shared, 1}));  // Also: everybody has opened before anybody closes.
  if (file >= 0) close(file);
  if (shared == 0) {
    for (FlagPage** page : {&own_, &prev_, &next_}) {
      if (*page != nullptr) munmap(*page, sizeof(FlagPage));
      *page = nullptr;
    }
  }
  return Status();
}

size_t CopyProbe::PassBytes(Kind kind, size_t bytes, int nranks) const {
  // Without flags nothing keeps a message and its answer apart.
  if (kind == Kind::kPingpong && own_ == nullptr) return 0;
  // What is already in its place is not moved: one rank's part of a reduce-scatter or allgather.
  const bool split = kind == Kind::kReduceScatter || kind == Kind::kAllgather;
  return split ? bytes / static_cast<size_t>(nranks) * static_cast<size_t>(nranks - 1) : bytes;
}

int CopyProbe::Variants(size_t pass_bytes) const {
  return arena_.gpu == nullptr && pass_bytes >= kStreamingBytes ? kVariants : 1;
}

Status CopyProbe::Copy(size_t bytes, int variant) {
  bytes = std::min(bytes, arena_.bytes);
  if (arena_.gpu != nullptr) return arena_.gpu->Copy(arena_.gpu_output, arena_.gpu_input, bytes);
  if (variant == kStreaming) {
    StreamingCopy(arena_.output, arena_.input, bytes);
  } else {
    std::memcpy(arena_.output, arena_.input, bytes);
  }
  // The compiler may not drop a copy that nobody reads.
  asm volatile("" ::: "memory");
  return Status();
}

void CopyProbe::RaiseFlag() { own_->flag.store(++passes_, std::memory_order_release); }

Status CopyProbe::Pass(Kind kind, size_t pass_bytes, int variant) {
  const bool is_pingpong = PatternOf(kind) == Pattern::kPingpong;
  const bool answers = is_pingpong && rank_ % 2 != 0;
  const bool is_alone = is_pingpong && ReceiverOf(kind, rank_, nranks_) == rank_;
  if (answers) ANNULUS_RETURN_IF_ERROR(WaitFor(prev_, passes_ + 1));
  if (!is_alone) ANNULUS_RETURN_IF_ERROR(Copy(pass_bytes, variant));
  if (own_ == nullptr) return Status();
  RaiseFlag();
  return answers || is_alone ? Status() : WaitFor(is_pingpong ? next_ : prev_, passes_);
}

Status CopyProbe::WaitFor(const FlagPage* page, uint64_t passes) {
  const Deadline deadline = DeadlineAfter(kPatience);
  for (int spins = 1; page->flag.load(std::memory_order_acquire) < passes; ++spins) {
    if (spins % kSpins != 0) continue;
    sched_yield();
    if (Now() > deadline) return {Code::kTimeout, "limit probe: a neighbour raised no flag"};
  }
  return Status();
}

std::string CopyProbe::Description() const {
  const std::string flags = own_ != nullptr ? ", then waits for a flag of its neighbour"
                                            : " (the ranks may not map each other's memory: without a flag)";
  const std::string where = arena_.gpu != nullptr ? " on its GPU" : "";
  return "memory: every rank copies its input to its output" + where + ", all ranks at once" + flags;
}

}  // namespace annulus::perf
