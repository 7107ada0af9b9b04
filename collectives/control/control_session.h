// ControlSession: the messages between rank 0 and one other rank, over one connection after another.
//
// Each side counts the messages that it has received, and keeps those that it has sent until the peer has confirmed
// them. On a new connection both sides first say how many they have; then each sends again what the other lacks. So
// every message arrives once and in order, however often a connection breaks between the two processes.
//
// Threads: the control thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "collectives/control/control_net.h"
#include "collectives/control/control_wire.h"
#include "collectives/control/message_stream.h"

namespace annulus {

// How a connection ended.
enum class ControlEnd {
  kOrderly,  // The peer closed it. A process that ends does that too.
  kReset,    // The peer, or something between, reset it. A process that is killed before it has read all does that too.
  kSilent,   // The kernel gave it up; the status has the errno.
  kProtocol,  // The peer broke the protocol; the status says how. What else it sends is ignored.
};

class ControlSession {
 public:
  struct Handlers {
    std::function<void(MessageType type, std::span<const std::byte> body)> on_message;
    // Called last of a connection's; after kProtocol once more when the connection has ended, with kProtocol again.
    // Until then messages can still be sent. After kReset or kSilent, Resume may go on.
    std::function<void(ControlEnd end, const Status& cause)> on_closed;
  };

  // Largest body of a message: reports and verdicts with their texts are the largest.
  static constexpr size_t kMostBodyBytes = 4096;
  // Messages that may wait for a confirmation. More means that the peer confirms nothing.
  static constexpr size_t kMostKept = 4096;

  // The net outlives the session.
  ControlSession(ControlNet* net, Handlers handlers);
  ControlSession(const ControlSession&) = delete;
  ControlSession& operator=(const ControlSession&) = delete;
  ~ControlSession() { Close(); }

  // Takes over `fd`, the first connection. Errors: kSystem.
  Status Open(SealedFd connection);
  // Goes on over `fd`, a new connection to the same process, and drops the one before. Errors: kSystem; kPeerLost
  // after Close.
  Status Resume(SealedFd connection);

  // Sends now or, without a connection, after Resume. Ignored after Finish or Close.
  void Send(MessageType type, const std::string& body);
  // No more messages will be sent: ends this direction of the connection once everything has gone out.
  void Finish();
  // Sends something that the peer need not answer: its kernel's acknowledgement shows that the connection carries.
  void Probe();
  // Drops the connection for good. No handler runs afterwards.
  void Close();

  bool closed() const { return closed_; }
  // Whether there is a connection.
  bool open() const { return stream_ != nullptr && stream_->open(); }
  // How long the peer's host had been silent when the last connection ended; kNoDeadline when that is not known.
  Nanoseconds silent_for() const { return stream_ != nullptr ? stream_->silent_for() : kNoDeadline; }
  // Whether all that was sent is known to have reached the peer's host.
  bool delivered() const { return open() && !awaits_resume_ && stream_->acknowledged(); }

 private:
  void Start(bool resumes);
  void OnMessage(MessageType type, std::span<const std::byte> body);
  void OnResume(uint64_t received);
  // Forgets the messages that the peer has. Returns false when it cannot have them.
  bool Confirm(uint64_t received);
  void OnEnded(const Status& cause);
  void Broken(const std::string& what);

  ControlNet* const net_;
  const Handlers handlers_;
  std::shared_ptr<MessageStream> stream_;
  std::deque<EncodedMessage> kept_;  // Sent and not confirmed.
  uint64_t confirmed_ = 0;           // Number of messages that the peer has for certain: those before kept_.
  uint64_t received_ = 0;            // Number of messages received.
  bool awaits_resume_ = false;       // The peer has not said yet what it has.
  bool finishing_ = false;
  bool broken_ = false;  // The peer of this connection broke the protocol.
  bool closed_ = false;
};

}  // namespace annulus
