// VerbsStream: the authenticated stream of a link once the link is up. It carries a farewell and nothing else; its end
// tells that the peer is gone, which a queue pair that only receives never notices. Or it carries how far each end has
// come, and then belongs to another link that goes on for this one.
//
// Threads: as the endpoint; the reactor's handlers run on the same thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "transport/handler_memory.h"
#include "transport/stream_socket.h"
#include "transport/verbs/rail/verbs_format.h"

namespace annulus {

class VerbsStream {
 public:
  // `socket` is connected, authenticated and non-blocking, and the ready word has been read from it.
  explicit VerbsStream(StreamSocket socket) : socket_(std::move(socket)) { KeepAlive(); }

  // Whether the owner should call Read(): the reactor found something, or some time has passed.
  bool LookDue() { return reads() && (state_->rung || (++idle_rounds_ % kIdleRoundsPerClock == 0 && LookDueByNow())); }
  // Something moved over the queue pair, so the peer was there.
  void NoteMove() { idle_rounds_ = 0; }
  bool rung() const { return reads() && state_->rung; }

  // Reads what has come. Returns false when it is not allowed.
  bool Read();
  // The peer is gone.
  bool ended() const { return ended_; }
  // What it said when it left; null when it died.
  const VerbsFarewell* farewell() const { return said_ == Said::kFarewell ? &farewell_ : nullptr; }
  // What it said when its device had stopped; null when it has not. Nothing that follows is read.
  const VerbsStop* stop() const { return said_ == Said::kStop ? &stop_ : nullptr; }
  // From now on the peer may say so.
  void MayStop() { may_stop_ = true; }

  // Makes the reactor return once something comes.
  void Wait();

  // Says farewell and closes the stream. Once it has said that the device has stopped, what follows is not of this
  // link, so there is no farewell.
  void Leave(const VerbsFarewell& farewell);

  // Says that the device has stopped.
  void Say(const VerbsStop& stop);
  // Whether the peer's host has acknowledged that.
  bool acknowledged();
  bool is_open() const { return socket_.is_open(); }
  StreamSocket TakeSocket() { return std::move(socket_); }

 private:
  // A handler that is still queued keeps it alive after the stream is gone.
  struct State {
    bool waiting = false;
    bool rung = false;
    HandlerMemory handler;
  };

  // Idle rounds in a row, of some tens of nanoseconds each, between two readings of the clock.
  static constexpr uint32_t kIdleRoundsPerClock = 64;
  // Time between two looks at the socket, each of which is a system call.
  static constexpr Nanoseconds kLookInterval = 200 * kMicrosecond;

  enum class Said : uint8_t { kNothing, kFarewell, kStop };

  bool reads() const { return !ended_ && said_ != Said::kStop; }
  bool ReadWords();
  bool LookDueByNow();
  // Lets the kernel notice that the peer's host is gone, also where this end has nothing to send.
  void KeepAlive();

  StreamSocket socket_;
  bool ended_ = false;
  bool may_stop_ = false;
  bool has_stopped_ = false;  // This end has said so.
  Said said_ = Said::kNothing;
  std::array<std::byte, VerbsFarewell::kBytes> in_{};
  size_t in_bytes_ = 0;
  VerbsFarewell farewell_;
  VerbsStop stop_;
  uint32_t idle_rounds_ = 0;
  Nanoseconds next_look_ = 0;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace annulus
