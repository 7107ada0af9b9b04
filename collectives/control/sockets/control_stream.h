// ControlStream: sends and receives whole messages over one TCP connection of bootstrap or control.
//
// A message's length is checked against a limit before anything is allocated for it.
// Lifetime: held by shared pointers; a pending operation keeps it alive. Close() drops the handlers and what they hold.
// Threads: the thread that runs the io_context.
#pragma once

#include <asio/io_context.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/control/message_stream.h"
#include "transport/security/sealed_socket.h"

namespace annulus {

class ControlStream : public MessageStream, public std::enable_shared_from_this<ControlStream> {
 public:
  // Takes over the connection. Bodies of messages have at most `most_bytes`.
  static Status Create(asio::io_context* context, SealedFd connection, size_t most_bytes,
                       std::shared_ptr<ControlStream>* stream);

  // Handlers run on the context's thread.
  void Start(Handlers handlers) override;
  void Send(const EncodedMessage& message) override;
  void Finish() override;
  void Ignore() override { ignores_ = true; }
  void Close() override;
  void Abandon() override;
  bool open() const override { return socket_.socket.is_open(); }
  bool was_reset() const override { return was_reset_; }
  Nanoseconds silent_for() const override { return silent_for_; }
  bool acknowledged() override;

  // Stops reading and drops the handlers. Sending continues.
  void StopReading();

  // Stops reading and returns the connection, which the caller then owns; -1 when closed. Nothing may be left to send.
  SealedFd Release();

  // Whether everything sent has been handed to the kernel.
  bool drained() const { return queue_.empty(); }

 private:
  explicit ControlStream(asio::io_context* context, size_t most_bytes) : socket_(*context), most_bytes_(most_bytes) {}

  void ReadHeader();
  void ReadBody(size_t bytes);
  void Discard();
  // After each read. Returns whether what was read counts.
  bool OnRead(const asio::error_code& error);
  void OnBroken(const std::string& what);
  void WriteQueue();
  void MaybeShutdown();
  void End(const Status& cause);
  void NoteWriteError(const asio::error_code& error);
  Status CauseOf(asio::error_code error);

  SealedSocket socket_;
  const size_t most_bytes_;
  Handlers handlers_;
  std::array<std::byte, kMessageHeaderBytes> header_{};
  std::vector<std::byte> body_;
  std::deque<EncodedMessage> queue_;
  size_t front_sent_ = 0;  // Bytes of queue_.front() already sent.
  bool finishing_ = false;
  bool ignores_ = false;
  bool was_reset_ = false;
  Nanoseconds silent_for_ = kNoDeadline;
  asio::error_code write_error_;  // First error of a write that says how the connection ended.
};

}  // namespace annulus
