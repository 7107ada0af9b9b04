// VerbsStream: the authenticated stream of a link once the link is up. It carries a farewell and nothing else; its end
// tells that the peer is gone, which a queue pair that only receives never notices.
//
// Threads: as the endpoint; the reactor's handlers run on the same thread.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "base/clock.h"
#include "transport/address.h"
#include "transport/handler_memory.h"
#include "transport/verbs/verbs_format.h"

namespace annulus {

class VerbsStream {
 public:
  // `socket` is connected, authenticated and non-blocking, and the ready word has been read from it.
  explicit VerbsStream(StreamSocket socket) : socket_(std::move(socket)) { KeepAlive(); }

  // Whether the owner should call Read(): the reactor found something, or some time has passed.
  bool LookDue() { return !ended_ && (state_->rung || (++idle_rounds_ % kIdleRoundsPerClock == 0 && LookDueByNow())); }
  bool rung() const { return !ended_ && state_->rung; }

  // Reads what has come. Returns false when it is not allowed.
  bool Read();
  // The peer is gone.
  bool ended() const { return ended_; }
  // What it said when it left; null when it died.
  const VerbsFarewell* farewell() const { return has_farewell_ ? &farewell_ : nullptr; }

  // Makes the reactor return once something comes.
  void Wait();

  // Says farewell and closes the stream.
  void Leave(const VerbsFarewell& farewell);

 private:
  // A handler that is still queued keeps it alive after the stream is gone.
  struct State {
    bool waiting = false;
    bool rung = false;
    HandlerMemory handler;
  };

  // Idle rounds, of some tens of nanoseconds each, between two readings of the clock.
  static constexpr uint32_t kIdleRoundsPerClock = 64;
  // Time between two looks at the socket, each of which is a system call.
  static constexpr Nanoseconds kLookInterval = 200 * kMicrosecond;

  bool LookDueByNow();
  // Lets the kernel notice that the peer's host is gone, also where this end has nothing to send.
  void KeepAlive();

  StreamSocket socket_;
  bool ended_ = false;
  bool has_farewell_ = false;
  std::array<std::byte, VerbsFarewell::kBytes> in_{};
  size_t in_bytes_ = 0;
  VerbsFarewell farewell_;
  uint32_t idle_rounds_ = 0;
  Nanoseconds next_look_ = 0;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace annulus
