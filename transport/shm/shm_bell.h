// ShmBell: how the two ends of a link wake each other, and notice that the other is gone: a UNIX stream socket.
//
// An end that goes to sleep says so in the mapping and then checks the rings once more. An end that changes a ring then
// checks whether the other end sleeps. Each side has a full fence between its two steps, so at least one of them sees
// the other and no wake-up is lost. While nobody sleeps, no system call is made.
//
// The same socket carries notices of memory that is read in place (shm_regions.h).
//
// Threads: as the endpoint; the reactor's handlers run on the same thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>

#include "base/clock.h"
#include "transport/handler_memory.h"
#include "transport/shm/shm_format.h"
#include "transport/shm/shm_regions.h"
#include "transport/stream_socket.h"

namespace annulus {

class ShmBell {
 public:
  // `own` and `peer` outlive the bell. `socket` is non-blocking and connected to the peer's bell.
  ShmBell(StreamSocket socket, ShmEnd* own, ShmEnd* peer);

  // Wakes the peer if it sleeps, and returns whether it did. Call after changing a ring.
  bool RingIfAsleep() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (peer_->asleep.load(std::memory_order_relaxed) == 0) return false;
    Ring();
    return true;
  }

  // Defers RingIfAsleep() to the next RingIfOwed(). By then the stores have left the processor, so the fence costs
  // little, and several changes share it.
  void Owe(bool changed = true) { owed_ |= changed; }
  bool RingIfOwed() {
    if (!owed_) return false;
    owed_ = false;
    return RingIfAsleep();
  }

  // Announces that this end is going to sleep. Check the rings again afterwards, then call Wait() or Wake().
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

  // Whether a spinning owner should call Drain(), a system call, to check that the peer is still alive. True from time
  // to time.
  bool LookDue() { return ++idle_rounds_ % kIdleRoundsPerClock == 0 && LookDueByNow(); }

  // Reads the bells that have rung, and passes notices to `regions`. Returns false when the peer's end of the socket is
  // closed.
  bool Drain(ShmPeerRegions* regions);

  // Sends a notice, with a file or -1. Returns false when the socket has no room for it now.
  bool Send(const ShmNotice& notice, int fd) { return SendWhole(&notice, sizeof(notice), fd); }
  // The same with an allocation's description.
  bool Send(const ShmNotice& notice, const SharedDeviceMemory& shared);

  // Announces how this end ends. The peer sees this before anything that this process does later.
  void SayFarewell(uint32_t farewell) {
    own_->farewell.store(farewell, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  // The peer's farewell; 0: none yet.
  uint32_t PeersFarewell(std::memory_order order) const { return peer_->farewell.load(order); }

  // Closes the socket. The peer notices that.
  void Shut();

  // The peer's process id; 0 when unknown (as across process namespaces).
  pid_t peer_process() const { return peer_process_; }
  // Whether the peer's process is of this one's user: what this one may read, that one may read too.
  bool is_peer_own_user() const { return is_peer_own_user_; }

 private:
  // A handler that is still queued keeps this alive after the bell is gone.
  struct State {
    bool waiting = false;
    bool rung = false;
    HandlerMemory handler;
  };

  // Idle rounds, of a few nanoseconds each, between two clock readings.
  static constexpr uint32_t kIdleRoundsPerClock = 64;

  bool SendWhole(const void* message, size_t bytes, int fd);
  void Ring();
  bool LookDueByNow();

  StreamSocket socket_;
  ShmEnd* const own_;
  ShmEnd* const peer_;
  pid_t peer_process_ = 0;
  bool is_peer_own_user_ = false;
  bool asleep_ = false;
  bool owed_ = false;
  uint32_t idle_rounds_ = 0;
  Nanoseconds next_look_ = 0;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace annulus
