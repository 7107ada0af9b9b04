// ShmLender: lends the sender's slots, and learns how far away the peer is: it times some of the slots, as ShmDistance
// asks. The distance decides how slots are filled. It also decides what is lent in place of a slot: nothing to a near
// peer, and to a far one what is faster so (ShmLoanChoice).
//
// Threads: as the endpoint; streams() may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/rate_limit.h"
#include "transport/shm/shm_distance.h"
#include "transport/shm/shm_format.h"
#include "transport/shm/shm_loan_choice.h"
#include "transport/shm/shm_sender.h"
#include "transport/transport.h"

namespace annulus {

class ShmLender {
 public:
  // `sender` outlives the lender. The ranks are used in log messages.
  ShmLender(ShmSender* sender, SlotStores stores, int rank, int peer);

  // Like ShmSender::Acquire, but times some slots.
  std::byte* Lend(size_t bytes, ShmFault* fault) {
    return distance_.probes() ? LendProbing(bytes, fault) : sender_->Acquire(bytes, ShmPlacing::kAtBeginning, fault);
  }
  // The next slice, of so many bytes, is about to be posted. `may_be_lent`: it may have been lent though nobody has
  // asked, as MayLend() said that asking is not worth while; so also for slices of which that is not known.
  void Posted(size_t bytes, bool may_be_lent = false) {
    if (fill_begun_ != 0) EndTimedFill(bytes);
    choice_.Sent(may_be_lent);
  }

  // Where slices are best put in their slots.
  ShmPlacing placing() const { return distance_.is_near() ? ShmPlacing::kInTurn : ShmPlacing::kAtBeginning; }
  // Whether slots are best written past the caches.
  bool streams() const { return distance_.streams(); }
  // Whether the next slice is better lent than sent through a slot, of which `peer` says how long it takes. Now and
  // then it looks whether the peer is near now: slots that go along with loans are not timed.
  bool PrefersLoan(const ShmEnd& peer);
  // Whether that may be so for the next slice.
  bool MayLend() const { return !distance_.probes() || (!distance_.is_near() && choice_.MayLend()); }
  // Copies `data` into a lent slot, with the stores that are best at present.
  void Fill(std::byte* slot, const std::byte* data, size_t bytes) const;

 private:
  // Once it is known how near the peer is, so many slots are lent, or loans asked about, before it looks again.
  static constexpr uint32_t kSlicesPerLook = 8;

  std::byte* LendProbing(size_t bytes, ShmFault* fault);
  void EndTimedFill(size_t bytes);
  // Looks, if it is time to, until a look has told something.
  void LookForReturn() {
    if (++slices_ >= kSlicesPerLook || distance_.nanoseconds() == 0) TimeReturn();
  }
  void TimeReturn();
  void NoteMove();

  ShmSender* const sender_;
  const int rank_;
  const int peer_;
  ShmDistance distance_;
  ShmLoanChoice choice_;
  ShmPace fills_;
  Nanoseconds fill_begun_ = 0;  // 0: nothing is timed.
  uint32_t slices_ = 0;         // Since the latest look that told something.
  RateLimit move_notes_;
};

}  // namespace annulus
