// MessageStream: sends and receives whole messages over one connection of bootstrap or control.
//
// ControlStream is one over TCP; the tests' simulator has its own.
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/control/control_wire.h"

namespace annulus {

// One encoded message; shared, because rank 0 sends the same table to everyone.
using EncodedMessage = std::shared_ptr<const std::string>;
inline EncodedMessage EncodeMessage(MessageType type, const std::string& body) {
  ByteWriter out;
  out.U32(static_cast<uint32_t>(body.size() + 1));
  out.U8(static_cast<uint8_t>(type));
  return std::make_shared<const std::string>(out.bytes() + body);
}

class MessageStream {
 public:
  struct Handlers {
    std::function<void(MessageType type, std::span<const std::byte> body)> on_message;
    // Called last, when the connection ended. `cause` is OK for an orderly end or a reset, kProtocol when the peer sent
    // a length beyond the limit, kSystem with the errno otherwise.
    std::function<void(const Status& cause)> on_closed;
    // The peer sent a length beyond the limit; the stream ignores the peer from now on. Null: the connection ends.
    std::function<void(const std::string& what)> on_broken = nullptr;
  };

  virtual ~MessageStream() = default;

  // Begins to read. Handlers never run within Start, Send or Close.
  virtual void Start(Handlers handlers) = 0;
  // Sends what can go out at once, and the rest when possible. Ignored after Finish or Close.
  virtual void Send(const EncodedMessage& message) = 0;
  // Ends this direction once everything sent has gone out. Reading continues until the peer ends its direction.
  virtual void Finish() = 0;
  // Throws away what else the peer sends, up to its end. What is sent to the peer still goes out.
  virtual void Ignore() = 0;
  // Drops the connection. No handler runs afterwards.
  virtual void Close() = 0;
  // As Close, for a connection that another one replaces: the peer does not mistake it for the end of this process.
  virtual void Abandon() = 0;

  virtual bool open() const = 0;
  // Whether the connection ended by a reset.
  virtual bool was_reset() const = 0;
  // How long the peer's host had been silent when the connection ended; kNoDeadline when that is not known.
  virtual Nanoseconds silent_for() const = 0;
  // Whether the peer's kernel has acknowledged everything sent; it does so for a stopped process too.
  virtual bool acknowledged() = 0;
};

}  // namespace annulus
