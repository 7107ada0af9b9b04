#include "transport/tcp/repair/tcp_greeting.h"

#include <asio/buffer.hpp>
#include <asio/socket_base.hpp>
#include <asio/write.hpp>
#include <utility>

namespace annulus {

void TcpGreeting::Start(uint64_t received, Done done) {
  done_ = std::move(done);
  FrameHeader own;
  own.type = FrameType::kResume;
  own.sequence = received;
  WriteFrameHeader(own, out_);
  asio::async_write(socket_, asio::buffer(out_), [self = shared_from_this()](const asio::error_code& error, size_t) {
    if (error) return self->Finish({Code::kPeerLost, error.message(), Status::kNoRank, error.value()}, 0);
    self->Look();
  });
}

// Nothing reads behind the caller's back, so that Look finds all there is.
void TcpGreeting::Look() {
  if (!done_) return;
  while (bytes_in_ < in_.size()) {
    asio::error_code error;
    const size_t got = socket_.read_some(asio::buffer(in_) + bytes_in_, error);
    if (error == asio::error::would_block) {
      return socket_.socket.async_wait(StreamSocket::wait_read,
                                       [self = shared_from_this()](const asio::error_code&) { self->Look(); });
    }
    if (error) {
      const int cause = error == asio::error::eof ? 0 : error.value();
      return Finish({Code::kPeerLost, error.message(), Status::kNoRank, cause}, 0);
    }
    bytes_in_ += got;
  }
  FrameHeader theirs;
  const Status parsed = ParseFrameHeader(in_, &theirs, FrameType::kResume);
  Finish(parsed, theirs.sequence);
}

// Reset, never closed: the peer may use it already, and must not take this for the end of the link.
void TcpGreeting::Cancel() {
  done_ = nullptr;
  asio::error_code ignored;
  if (socket_.socket.is_open()) socket_.socket.set_option(asio::socket_base::linger(true, 0), ignored);
  socket_.socket.close(ignored);
}

void TcpGreeting::Finish(const Status& status, uint64_t received) {
  if (!done_) return;
  std::exchange(done_, nullptr)(status, received);
}

}  // namespace annulus
