// ControlStream: sends and receives whole messages over one TCP connection of bootstrap or control.
//
// A message's length is checked against a limit before anything is allocated for it.
// Lifetime: held by shared pointers; a pending operation keeps it alive. Close() drops the handlers and what they hold.
// Threads: the thread that runs the io_context.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "collectives/control/control_wire.h"

namespace annulus {

// One encoded message; shared, because rank 0 sends the same table to everyone.
using EncodedMessage = std::shared_ptr<const std::string>;
EncodedMessage EncodeMessage(MessageType type, const std::string& body);

class ControlStream : public std::enable_shared_from_this<ControlStream> {
 public:
  struct Handlers {
    std::function<void(MessageType type, std::span<const std::byte> body)> on_message;
    // Called last, when the connection ended. `cause` is OK for an orderly end or a reset, kProtocol when the peer sent
    // a length beyond the limit, kSystem with the errno otherwise.
    std::function<void(const Status& cause)> on_closed;
  };

  // Takes over `fd`. Bodies of messages have at most `most_bytes`.
  static Status Create(asio::io_context* context, int fd, size_t most_bytes, std::shared_ptr<ControlStream>* stream);

  // Begins to read. Handlers run on the context's thread, never within Start, Send or Close.
  void Start(Handlers handlers);

  // Sends what the kernel accepts at once, and the rest when possible. Ignored after Finish or Close.
  void Send(const EncodedMessage& message);

  // Ends this direction once everything sent has gone out. Reading continues until the peer ends its direction.
  void Finish();

  // Drops the connection. No handler runs afterwards.
  void Close();

  // Stops reading and drops the handlers. Sending continues.
  void StopReading();

  // Stops reading and returns the socket, which the caller then owns; -1 when closed. Nothing may be left to send.
  int Release();

  bool open() const { return socket_.is_open(); }
  // Whether the connection ended by a reset.
  bool was_reset() const { return was_reset_; }
  // Whether everything sent has been handed to the kernel.
  bool drained() const { return queue_.empty(); }
  // Whether the peer's kernel has acknowledged everything sent; it does so for a stopped process too.
  bool acknowledged();

 private:
  explicit ControlStream(asio::io_context* context, size_t most_bytes) : socket_(*context), most_bytes_(most_bytes) {}

  void ReadHeader();
  void ReadBody(size_t bytes);
  void WriteQueue();
  void MaybeShutdown();
  void End(const Status& cause);
  void NoteWriteError(const asio::error_code& error);
  Status CauseOf(asio::error_code error);

  asio::ip::tcp::socket socket_;
  const size_t most_bytes_;
  Handlers handlers_;
  std::array<std::byte, kMessageHeaderBytes> header_{};
  std::vector<std::byte> body_;
  std::deque<EncodedMessage> queue_;
  size_t front_sent_ = 0;  // Bytes of queue_.front() already sent.
  bool finishing_ = false;
  bool was_reset_ = false;
  asio::error_code write_error_;  // First error of a write that says how the connection ended.
};

}  // namespace annulus
