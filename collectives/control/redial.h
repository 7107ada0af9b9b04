// Redial: a rank's attempts to reach rank 0's control door again.
//
// An attempt that fails is followed by another one until the time is up, unless nobody listens at the door any more, or
// a process of another run does.
// A connection that breaks soon after it was made is not made again at once: something between the two hosts may let
// every handshake pass and reset what follows.
//
// Threads: the control thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "collectives/control/control_net.h"

namespace annulus {

class Redial {
 public:
  // Each Begin() that Stop() does not end calls one of these last.
  struct Handlers {
    // The callee owns `fd`. Returns false when it cannot be used; the attempts go on.
    std::function<bool(SealedFd connection)> on_connected;
    // Nobody listens at the door, somebody else does, or rank 0 expects this rank no more.
    std::function<void()> on_refused;
    // The time is up; `last` says how the last attempt failed.
    std::function<void(const Status& last)> on_late;
  };

  // The net outlives this object.
  Redial(ControlNet* net, Handlers handlers);
  Redial(const Redial&) = delete;
  Redial& operator=(const Redial&) = delete;
  ~Redial() { Stop(); }

  void set_door(const StreamEndpoint& door) { door_ = door; }
  bool has_door() const { return HasAddress(door_); }
  bool active() const { return until_ != kNoDeadline; }
  // Whether rank 0's host accepted the last attempt that has ended, while rank 0 did not answer: the path carries, and
  // rank 0 is stopped or slow.
  bool awaits_rank_0() const { return awaits_rank_0_; }

  // Tries for `time`, in place of what was tried before.
  void Begin(Nanoseconds time);
  void Stop();

 private:
  void Dial();
  void OnDialled(const Status& status, SealedFd connection);

  ControlNet* const net_;
  const Handlers handlers_;
  StreamEndpoint door_;  // No address when there is none.
  const std::unique_ptr<ControlTimer> pause_;
  Deadline until_ = kNoDeadline;             // End of the attempts; kNoDeadline: there are none.
  Nanoseconds dial_time_ = 0;                // Limit of the next attempt.
  std::optional<Nanoseconds> connected_at_;  // When the last attempt succeeded.
  Nanoseconds first_pause_ = 0;              // Wait before the first attempt.
  bool awaits_rank_0_ = false;
};

}  // namespace annulus
