// ShmLender: lends the sender's slots, and learns how far away the peer is: it times some of the slots, as ShmDistance
// asks. The distance decides how slots are filled.
//
// Threads: as the endpoint; streams() may be called from any thread.
#pragma once

#include <cstddef>

#include "base/rate_limit.h"
#include "transport/shm/shm_distance.h"
#include "transport/shm/shm_format.h"
#include "transport/shm/shm_sender.h"
#include "transport/transport.h"

namespace annulus {

class ShmLender {
 public:
  // `sender` outlives the lender. The ranks are used in log messages.
  ShmLender(ShmSender* sender, SlotStores stores, int rank, int peer);

  // Like ShmSender::Acquire, but times some slots.
  std::byte* Lend(ShmFault* fault) { return distance_.probes() ? LendProbing(fault) : sender_->Acquire(fault); }

  // Whether slots are best written past the caches.
  bool streams() const { return distance_.streams(); }
  // As ShmDistance.
  bool is_near() const { return distance_.is_near(); }
  // Before a slice is lent, whose slot is not timed: looks whether the peer is near now. If it was, slots are timed.
  void LookAtPeer() {
    if (distance_.probes() && !distance_.is_near()) TimeReturn();
  }
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
  RateLimit move_notes_;
};

}  // namespace annulus
