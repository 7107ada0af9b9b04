// Reads header and body in turn, asynchronously. Writes are done at once if the kernel accepts them, else queued.
#include "collectives/control/sockets/control_stream.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <asio/buffer.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include "base/bytes.h"

namespace annulus {
namespace {

// A connection that carries nothing any more is given up after about 3 s of silence, or 3 s after the first unanswered
// byte. The kernel of a stopped process still answers, so only the network or the host can be the cause. Another
// connection then takes its place (control_session.h), so giving up early costs little.
// A rank that says nothing learns by its next probe that something on the way has forgotten its connection, so probes
// come often.
constexpr int kKeepaliveIdleSeconds = 1;
constexpr int kKeepaliveIntervalSeconds = 1;
constexpr int kKeepaliveProbes = 2;
constexpr unsigned kUserTimeoutMs = 3000;
constexpr size_t kDiscardBytes = 4096;  // Most bytes read at a time from a peer that is ignored.

// Failures are harmless: the connection works without these options, and tests use sockets without keepalive.
void SetOptions(int fd) {
  const auto set = [fd](int level, int option, const auto& value) {
    ::setsockopt(fd, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, int{1});
  set(SOL_SOCKET, SO_KEEPALIVE, int{1});
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);  // A program that this process starts must not keep the connection alive.
}

// Time since the kernel last heard the peer's host; kNoDeadline when it does not know.
Nanoseconds SilenceOf(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return kNoDeadline;
  return std::min(info.tcpi_last_data_recv, info.tcpi_last_ack_recv) * kMillisecond;
}

}  // namespace

Status ControlStream::Create(asio::io_context* context, SealedFd connection, size_t most_bytes,
                             std::shared_ptr<ControlStream>* stream) {
  const int fd = connection.fd;
  std::shared_ptr<ControlStream> made(new ControlStream(context, most_bytes));
  sockaddr_storage address{};
  socklen_t address_bytes = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &address_bytes) != 0) {
    const int cause = errno;
    ::close(fd);
    return Status::System("a control connection is no socket", cause);
  }
  SetOptions(fd);
  asio::error_code error;
  made->socket_.socket.assign(StreamProtocol(address.ss_family, 0), fd, error);
  if (error) {
    ::close(fd);
    return Status::System("registering a control connection", error.value());
  }
  made->socket_.socket.non_blocking(true, error);
  if (error) return Status::System("making a control connection non-blocking", error.value());
  made->socket_.seal = std::move(connection.seal);
  *stream = std::move(made);
  return Status();
}

void ControlStream::Start(Handlers handlers) {
  handlers_ = std::move(handlers);
  ReadHeader();
}

bool ControlStream::OnRead(const asio::error_code& error) {
  if (!open() || !handlers_.on_closed) return false;
  if (error) {
    End(CauseOf(error));
  } else if (ignores_) {
    Discard();
  }
  return !error && !ignores_;
}

void ControlStream::ReadHeader() {
  asio::async_read(socket_, asio::buffer(header_), [self = shared_from_this()](const asio::error_code& error, size_t) {
    if (!self->OnRead(error)) return;
    ByteReader in(self->header_);
    const size_t bytes = in.U32();  // Includes the type.
    if (bytes == 0 || bytes - 1 > self->most_bytes_) {
      return self->OnBroken("a length of " + std::to_string(bytes) + " bytes");
    }
    self->ReadBody(bytes - 1);
  });
}

void ControlStream::ReadBody(size_t bytes) {
  body_.resize(bytes);
  asio::async_read(socket_, asio::buffer(body_), [self = shared_from_this()](const asio::error_code& error, size_t) {
    if (!self->OnRead(error)) return;
    const auto on_message = self->handlers_.on_message;  // A copy: the handler may close this stream.
    on_message(static_cast<MessageType>(self->header_[kMessageHeaderBytes - 1]), self->body_);
    if (!self->open() || !self->handlers_.on_message) return;
    self->ignores_ ? self->Discard() : self->ReadHeader();
  });
}

// Closing with unread bytes would reset the connection, and lose what is still on its way to the peer.
void ControlStream::Discard() {
  body_.resize(kDiscardBytes);
  socket_.async_read_some(asio::buffer(body_),
                          [self = shared_from_this()](const asio::error_code& error, size_t) { self->OnRead(error); });
}

void ControlStream::OnBroken(const std::string& what) {
  const auto on_broken = handlers_.on_broken;  // A copy, as above.
  if (!on_broken) return End(Status(Code::kProtocol, what));
  Ignore();
  on_broken(what);
  if (open() && handlers_.on_closed) Discard();
}

void ControlStream::Send(const EncodedMessage& message) {
  if (!open() || finishing_) return;
  queue_.push_back(message);
  if (queue_.size() > 1) return;  // A write is in progress.
  front_sent_ = 0;
  // Write at once, so that later actions of a verdict's receiver (such as exit) cannot overtake the verdict.
  asio::error_code error;
  front_sent_ = socket_.write_some(asio::buffer(*message), error);
  if (!error && front_sent_ == message->size()) {
    queue_.pop_front();
    return;
  }
  NoteWriteError(error);
  WriteQueue();  // Would block, or failed: the asynchronous write finds out the same, and reading notices the end.
}

void ControlStream::WriteQueue() {
  const std::string& front = *queue_.front();
  asio::async_write(socket_, asio::buffer(front.data() + front_sent_, front.size() - front_sent_),
                    [self = shared_from_this()](const asio::error_code& error, size_t) {
                      if (!self->open()) return;
                      self->front_sent_ = 0;
                      if (error) {
                        self->NoteWriteError(error);
                        self->queue_.clear();
                      } else {
                        self->queue_.pop_front();
                      }
                      if (!self->queue_.empty()) return self->WriteQueue();
                      self->MaybeShutdown();
                    });
}

void ControlStream::Finish() {
  finishing_ = true;
  MaybeShutdown();
}

void ControlStream::MaybeShutdown() {
  if (!finishing_ || !open() || !queue_.empty()) return;
  asio::error_code ignored;  // Fails only when the connection is gone already.
  socket_.socket.shutdown(StreamSocket::shutdown_send, ignored);
}

void ControlStream::End(const Status& cause) {
  const auto on_closed = std::move(handlers_.on_closed);
  if (open()) silent_for_ = SilenceOf(socket_.socket.native_handle());
  Close();
  if (on_closed) on_closed(cause);
}

void ControlStream::Close() {
  handlers_ = {};
  asio::error_code ignored;
  socket_.socket.close(ignored);
}

// A reset, not an orderly end.
void ControlStream::Abandon() {
  asio::error_code ignored;
  if (open()) socket_.socket.set_option(asio::socket_base::linger(true, 0), ignored);
  Close();
}

bool ControlStream::acknowledged() {
  if (!open()) return false;
  int pending = 0;
  const bool is_known = ::ioctl(socket_.socket.native_handle(), SIOCOUTQ, &pending) == 0;
  return drained() && !(is_known && pending > 0);
}

void ControlStream::StopReading() {
  handlers_ = {};
  asio::error_code ignored;
  if (open() && drained()) socket_.socket.cancel(ignored);
}

SealedFd ControlStream::Release() {
  if (!open()) return {};
  handlers_ = {};
  return socket_.Release();
}

void ControlStream::NoteWriteError(const asio::error_code& error) {
  if (!write_error_ && error && error != asio::error::would_block && error != asio::error::broken_pipe)
    write_error_ = error;
}

// The connections of a killed process end in an orderly way, or by a reset if it had not read everything.
Status ControlStream::CauseOf(asio::error_code error) {
  // The kernel says what went wrong once: if to a write, reading finds nothing but an end.
  if (error == asio::error::eof && write_error_) error = write_error_;
  was_reset_ = error == asio::error::connection_reset || error == asio::error::connection_aborted;
  if (error == asio::error::eof || error == asio::error::broken_pipe || was_reset_) return Status();
  return Status::System("reading from a control connection", error.value());
}

}  // namespace annulus
