// ControlNet: all that a control thread uses of the world: the time, timers, and connections between a rank and rank 0.
//
// SocketNet is the real one. With another, the same control code runs in virtual time, over connections that lose what
// a test wants them to lose. Threads: one at a time.
#pragma once

#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/control/message_stream.h"
#include "transport/address.h"
#include "transport/security/sealed_fd.h"

namespace annulus {

// Runs one function at a time, later. It does not run after Cancel or the destructor.
class ControlTimer {
 public:
  virtual ~ControlTimer() = default;
  // Replaces what was to run before.
  virtual void Set(Nanoseconds wait, std::function<void()> run) = 0;
  virtual void Cancel() = 0;
};

class ControlNet {
 public:
  // Whether a rank may come back.
  using Expects = std::function<bool(int rank)>;
  // A rank came back; the callee owns the descriptor.
  using Returned = std::function<void(int rank, SealedFd connection)>;
  // An attempt to connect ended. After OK the callee owns the descriptor. Errors: kSystem with the errno of the
  // connection; kTimeout, with ETIMEDOUT where no connection was made, without an errno where rank 0's host accepted
  // one and rank 0 has not answered; kPeerLost, and as StreamHandshake.
  using Dialled = std::function<void(const Status& status, SealedFd connection)>;

  virtual ~ControlNet() = default;

  virtual Nanoseconds Now() const = 0;
  Deadline After(Nanoseconds duration) const { return Now() + duration; }
  virtual std::unique_ptr<ControlTimer> MakeTimer() = 0;

  // Takes over one end of a connection. Bodies of messages have at most `most_bytes`. Errors: kSystem.
  virtual Status Adopt(SealedFd connection, size_t most_bytes, std::shared_ptr<MessageStream>* stream) = 0;

  // Rank 0: takes over `listener` (ControlDoorPlace), where ranks whose connection broke come in. Errors: kSystem.
  virtual Status OpenDoor(int listener, Expects expects, Returned returned) = 0;

  // Other ranks: dials rank 0's `door`, for at most `limit`. Calls `done` once, unless CancelDial comes first.
  // One dial at a time.
  virtual void Dial(const StreamEndpoint& door, Nanoseconds limit, Dialled done) = 0;
  virtual void CancelDial() = 0;
};

}  // namespace annulus
