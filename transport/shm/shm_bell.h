// ShmBell: how the two ends of a link wake each other, and notice that the other is gone: a UNIX stream socket.
//
// An end that goes to sleep says so in the segment and then looks at the rings once more; an end that changes a ring
// then looks whether the other sleeps. With a full fence between the two steps on both sides at least one of them sees
// the other, so no wake-up is lost, and while nobody sleeps no system call is made.
//
// The same socket carries notices of registered memory (shm_regions.h).
//
// Threads: as the endpoint; its reactor's handlers run on the same thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>

#include "transport/address.h"
#include "transport/shm/shm_format.h"
#include "transport/shm/shm_regions.h"

namespace annulus {

class ShmBell {
 public:
  // `own` and `peer` outlive the bell. `socket` is non-blocking and connected to the peer's bell.
  ShmBell(StreamSocket socket, ShmEnd* own, ShmEnd* peer);

  // Wakes the peer if it sleeps. Call after changing a ring.
  void RingIfAsleep() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (peer_->asleep.load(std::memory_order_relaxed) != 0) Ring();
  }

  // Says that this end is going to sleep. Then look at the rings again, and call Wait() or Wake().
  void Sleep() {
    asleep_ = true;
    own_->asleep.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void Wake() {
    asleep_ = false;
    own_->asleep.store(0, std::memory_order_relaxed);
  }
  bool asleep() const { return asleep_; }

  // Makes the reactor return once the bell rings or the peer is gone.
  void Wait();
  // Whether the reactor found the bell ringing.
  bool rung() const { return state_->rung; }

  // Takes off what bells have rung, and gives notices to `regions`. Returns false when the peer's end of the socket is
  // closed.
  bool Drain(ShmPeerRegions* regions);

  // Sends a notice, with a file or -1. Returns false when there is no room for it now.
  bool Send(const ShmNotice& notice, int fd);

  // Closes the socket, which the peer notices.
  void Shut();

  // The peer's process, 0 when unknown (as across process namespaces).
  pid_t peer_process() const { return peer_process_; }

 private:
  // Outlives the bell in a handler that is still queued.
  struct State {
    bool waiting = false;
    bool rung = false;
  };

  void Ring();

  StreamSocket socket_;
  ShmEnd* const own_;
  ShmEnd* const peer_;
  pid_t peer_process_ = 0;
  bool asleep_ = false;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace annulus
