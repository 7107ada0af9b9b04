#include "transport/shm/shm_lender.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <atomic>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace annulus {
namespace {

// Each link logs a change at most once in this time: threads that migrate may alternate between near and far.
constexpr Nanoseconds kMoveNoteInterval = 10 * kSecond;

// `to` is aligned to a cache line. A fence follows, so the next store can signal that the data is there.
void CopyPastCaches(std::byte* to, const std::byte* from, size_t bytes) {
#if defined(__SSE2__)
  const size_t whole = bytes / sizeof(__m128i) * sizeof(__m128i);
  for (size_t i = 0; i < whole; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  std::memcpy(to + whole, from + whole, bytes - whole);
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace

ShmLender::ShmLender(ShmSender* sender, SlotStores stores, int rank, int peer)
    : sender_(sender), rank_(rank), peer_(peer), distance_(stores), move_notes_(kMoveNoteInterval) {}

void ShmLender::NoteMove() {
  // This is on the data path, but rare enough.
  uint64_t missed = 0;
  if (!move_notes_.Pass(Now(), &missed)) return;
  Log(LogLevel::kInfo, rank_,
      "rank %d is %s now, %lld ns for a cache line: slots for it are written by %s stores; changes that were not told: "
      "%llu",
      peer_, distance_.streams() ? "far" : "near", static_cast<long long>(distance_.nanoseconds()),
      distance_.streams() ? "streaming" : "plain", static_cast<unsigned long long>(missed));
}

void ShmLender::EndTimedFill(size_t bytes) {
  // Not before the lines are here: the peer sees the slice only after they have come.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const Nanoseconds took = Now() - std::exchange(fill_begun_, 0);
  if (bytes >= ShmPace::kLeastTimed) fills_.Add(bytes, took);
}

void ShmLender::TimeReturn() {
  const Nanoseconds took = sender_->TimeReturn();
  if (took == 0) return;
  slices_ = 0;
  if (distance_.AddReturn(took)) NoteMove();
  sender_->Spare(distance_.asks_for_rewrite() ? ShmDistance::kRewriteBytes : SIZE_MAX);
}

bool ShmLender::PrefersLoan(const ShmEnd& peer) {
  if (!distance_.probes()) return true;
  // That takes 0.2 us: the line comes from the peer, and the clock is read twice.
  if (!distance_.is_near()) LookForReturn();
  if (distance_.is_near()) return false;
  return choice_.Lends(
      {fills_.value(), peer.slot_pace.load(std::memory_order_relaxed), peer.loan_pace.load(std::memory_order_relaxed)});
}

std::byte* ShmLender::LendProbing(size_t bytes, ShmFault* fault) {
  LookForReturn();
  const bool rewrites = distance_.asks_for_rewrite() && bytes >= ShmDistance::kRewriteBytes;
  std::byte* const slot = sender_->Acquire(bytes, placing(), fault);
  if (rewrites && slot != nullptr) {
    const Nanoseconds took = sender_->TimeRewrite(slot, ShmDistance::kRewriteBytes);
    if (took != 0 && distance_.AddRewrite(took)) NoteMove();
    if (!distance_.asks_for_rewrite()) sender_->Spare(SIZE_MAX);
  }
  if (choice_.fills_warm_slot()) fill_begun_ = Now();
  return slot;
}

void ShmLender::Fill(std::byte* slot, const std::byte* data, size_t bytes) const {
  if (streams()) return CopyPastCaches(slot, data, bytes);
  std::memcpy(slot, data, bytes);
}

}  // namespace annulus
