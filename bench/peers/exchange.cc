// Flags count up and never go back, so that no slot needs handing back: a rank that has published piece k + 2 has
// collected piece k, and a rank that has added up piece k has read what was published of it.
//
// Threads: see exchange.h. A rank's counters and slots are written by it alone and read by the others.
#include "bench/peers/exchange.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>

#include "base/clock.h"

namespace annulus::peers {
namespace {

// Small enough for few slots to stay in a second-level cache, large enough to hide the flags.
constexpr size_t kShareFloats = (64 << 10) / sizeof(float);
constexpr size_t kFewSlots = 4;    // Pieces published ahead: 2; so 3 would do, and 4 divides without a division.
constexpr size_t kFewHops = 2;     // The same for one hop.
constexpr size_t kManySlots = 32;  // For either. kFewSlots and kFewHops divide it, so that calls of both kinds may mix.
constexpr size_t kLineFloats = 64 / sizeof(float);
constexpr size_t kOneHopFloats = Exchange::kOneHopBytes / sizeof(float);
constexpr size_t kFewFloats = kLineFloats - sizeof(uint64_t) / sizeof(float);
// Before the core is offered to other ranks; the fewer where there are more ranks than cores.
constexpr int kSpins = 200;
constexpr int kSpinsCrowded = 20;
constexpr Nanoseconds kPatience = 20 * kSecond;

}  // namespace

struct Exchange::Rank {
  struct alignas(64) Counter {
    std::atomic<uint64_t> value{0};
  };
  Counter published;  // Pieces.
  Counter reduced;
  Counter barriers;
  struct alignas(4096) Hop {
    std::atomic<uint64_t> number{0};
    float few[kFewFloats];  // In the flag's line: it all crosses at once.
    alignas(64) float many[kOneHopFloats];
    float* data(size_t count) { return count <= kFewFloats ? few : many; }
  };
  Hop hops[kManySlots];
  alignas(4096) float sums[kManySlots][kShareFloats];
  alignas(4096) float inputs[kManySlots][kMaxRanks][kShareFloats];  // Untouched pages cost nothing.
};

struct Exchange::Message {
  const float* send;
  float* recv;
  size_t count;
  Streaming streaming;
  size_t share_floats;  // Floats of a rank's share, in whole pieces.
  uint64_t first_piece;
  size_t slots;

  size_t Slot(size_t piece) const { return (first_piece + piece) % slots; }

  struct Range {
    size_t begin;
    size_t count;
  };
  Range Share(size_t piece, int rank, int nranks) const {
    const size_t begin = (piece * static_cast<size_t>(nranks) + static_cast<size_t>(rank)) * share_floats;
    return {begin, begin >= count ? 0 : std::min(share_floats, count - begin)};
  }
};

Status Exchange::Open(const std::string& path, int rank, int nranks, Exchange* exchange) {
  if (nranks > kMaxRanks) return Status::Invalid("at most " + std::to_string(kMaxRanks) + " ranks");
  const size_t bytes = sizeof(Rank) * static_cast<size_t>(nranks);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return Status::System("open " + path, errno);
  void* mapping = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  const int error = errno;
  close(file);
  if (mapping == MAP_FAILED) return Status::System("map " + path, error);
  exchange->mapping_ = mapping;
  exchange->mapping_bytes_ = bytes;
  exchange->rank_ = rank;
  exchange->nranks_ = nranks;
  exchange->spins_ = static_cast<unsigned>(nranks) > std::thread::hardware_concurrency() ? kSpinsCrowded : kSpins;
  // A fresh file is zeros, which is what the counters begin with.
  for (int i = 0; i < nranks; ++i) exchange->ranks_[static_cast<size_t>(i)] = static_cast<Rank*>(mapping) + i;
  return Status();
}

Exchange::~Exchange() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

template <typename Flag>
Status Exchange::WaitFor(Flag flag, uint64_t least) const {
  Deadline deadline = kNoDeadline;
  for (int other = 0; other < nranks_; ++other) {
    const std::atomic<uint64_t>& value = flag(*ranks_[static_cast<size_t>(other)]);
    for (int spins = 1; value.load(std::memory_order_acquire) < least; ++spins) {
      if (spins % spins_ != 0) continue;
      sched_yield();
      if (deadline == kNoDeadline) deadline = DeadlineAfter(kPatience);
      if (Now() > deadline) return {Code::kTimeout, "rank " + std::to_string(other) + " raised no flag"};
    }
  }
  return Status();
}

Status Exchange::Barrier() {
  ranks_[static_cast<size_t>(rank_)]->barriers.value.store(++barriers_, std::memory_order_release);
  return WaitFor(
      [](const Rank& rank) -> auto& { return rank.barriers.value; }, barriers_);
}

Status Exchange::OneHop(const float* send, float* recv, size_t count, Way way) {
  Rank& own = *ranks_[static_cast<size_t>(rank_)];
  const bool stream = way.streaming.slot && count > kFewFloats;
  const size_t slot = hops_ % (way.many_slots ? kManySlots : kFewHops);
  Move(send, own.hops[slot].data(count), count, stream);
  if (stream) FinishStreaming();
  own.hops[slot].number.store(++hops_, std::memory_order_release);
  ANNULUS_RETURN_IF_ERROR(WaitFor(
      [slot](const Rank& rank) -> auto& { return rank.hops[slot].number; }, hops_));
  std::array<const float*, kMaxOthers> others{};
  int found = 0;
  for (int other = 0; other < nranks_; ++other) {
    if (other != rank_)
      others[static_cast<size_t>(found++)] = ranks_[static_cast<size_t>(other)]->hops[slot].data(count);
  }
  Fold(send, others.data(), found, recv, nullptr, count, {});
  return Status();
}

void Exchange::Publish(const Message& message, size_t piece) {
  Rank& own = *ranks_[static_cast<size_t>(rank_)];
  const uint64_t number = message.first_piece + piece;
  for (int other = 0; other < nranks_; ++other) {
    if (other == rank_) continue;
    const auto share = message.Share(piece, other, nranks_);
    Move(message.send + share.begin, own.inputs[message.Slot(piece)][other], share.count, message.streaming.slot);
  }
  if (message.streaming.slot) FinishStreaming();
  own.published.value.store(number + 1, std::memory_order_release);
}

Status Exchange::Reduce(const Message& message, size_t piece) {
  Rank& own = *ranks_[static_cast<size_t>(rank_)];
  const uint64_t number = message.first_piece + piece;
  ANNULUS_RETURN_IF_ERROR(WaitFor(
      [](const Rank& rank) -> auto& { return rank.published.value; }, number + 1));
  std::array<const float*, kMaxOthers> others{};
  int found = 0;
  for (int other = 0; other < nranks_; ++other) {
    if (other == rank_) continue;
    others[static_cast<size_t>(found++)] = ranks_[static_cast<size_t>(other)]->inputs[message.Slot(piece)][rank_];
  }
  const auto share = message.Share(piece, rank_, nranks_);
  Fold(message.send + share.begin, others.data(), found, message.recv + share.begin, own.sums[message.Slot(piece)],
       share.count, message.streaming);
  if (message.streaming.slot) FinishStreaming();
  own.reduced.value.store(number + 1, std::memory_order_release);
  return Status();
}

Status Exchange::Collect(const Message& message, size_t piece) {
  const uint64_t number = message.first_piece + piece;
  ANNULUS_RETURN_IF_ERROR(WaitFor(
      [](const Rank& rank) -> auto& { return rank.reduced.value; }, number + 1));
  for (int other = 0; other < nranks_; ++other) {
    if (other == rank_) continue;
    const auto share = message.Share(piece, other, nranks_);
    Move(ranks_[static_cast<size_t>(other)]->sums[message.Slot(piece)], message.recv + share.begin, share.count,
         message.streaming.output);
  }
  return Status();
}

Status Exchange::Allreduce(const float* send, float* recv, size_t count, Way way) {
  if (way.one_hop) {
    if (count > kOneHopFloats) return Status::Invalid("too large for one hop");
    return OneHop(send, recv, count, way);
  }
  const size_t nranks = static_cast<size_t>(nranks_);
  // Whole cache lines: what is aligned stays so.
  const size_t even = (count + nranks - 1) / nranks;
  const size_t share = std::min(kShareFloats, (even + kLineFloats - 1) / kLineFloats * kLineFloats);
  const size_t slots = way.many_slots ? kManySlots : kFewSlots;
  const Message message{send, recv, count, way.streaming, share, pieces_, slots};
  const size_t pieces = (count + nranks * share - 1) / (nranks * share);
  for (size_t turn = 0; turn < pieces + 2; ++turn) {
    if (turn < pieces) Publish(message, turn);
    if (turn >= 1 && turn - 1 < pieces) ANNULUS_RETURN_IF_ERROR(Reduce(message, turn - 1));
    if (turn >= 2) ANNULUS_RETURN_IF_ERROR(Collect(message, turn - 2));
  }
  if (way.streaming.output) FinishStreaming();
  pieces_ += pieces;
  return Status();
}

}  // namespace annulus::peers
