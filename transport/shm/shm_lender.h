// ShmLender: lends the sender's slots, and learns how far away the peer is: it times some of the slots, as ShmDistance
// asks. The distance decides how slots are filled. It also decides what is lent in place of a slot: nothing to a near
// peer, and to a far one what is faster so (ShmLoanChoice).
//
// Threads: as the endpoint; streams() may be called from any thread.
#pragma once

#include <cstddef>

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
  std::byte* Lend(ShmFault* fault) { return distance_.probes() ? LendProbing(fault) : sender_->Acquire(fault); }
  // The next slice has been posted, with so many bytes.
  void Posted(size_t bytes) {
    if (fill_begun_ != 0 && bytes >= ShmPace::kLeastTimed) fills_.Add(bytes, Now() - fill_begun_);
    fill_begun_ = 0;
    choice_.Sent();
  }

  // Whether slots are best written past the caches.
  bool streams() const { return distance_.streams(); }
  // Whether the next slice is better lent than sent through a slot, of which `peer` says how long it takes. First looks
  // whether the peer is near now: slots that go along with loans are not timed.
  bool PrefersLoan(const ShmEnd& peer);
  // Copies `data` into a lent slot, with the stores that are best at present.
  void Fill(std::byte* slot, const std::byte* data, size_t bytes) const;

 private:
  std::byte* LendProbing(ShmFault* fault);
  void TimeReturn();
  void NoteMove();

  ShmSender* const sender_;
  const int rank_;
  const int peer_;
  ShmDistance distance_;
  ShmLoanChoice choice_;
  ShmPace fills_;
  Nanoseconds fill_begun_ = 0;  // 0: nothing is timed.
  RateLimit move_notes_;
};

}  // namespace annulus
