#include "transport/tcp/repair/tcp_greeting.h"

#include <asio/buffer.hpp>
#include <asio/read.hpp>
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
    if (error) return self->Finish({Code::kPeerLost, error.message()}, 0);
    self->Read();
  });
}

void TcpGreeting::Read() {
  if (!done_) return;
  asio::async_read(socket_, asio::buffer(in_), [self = shared_from_this()](const asio::error_code& error, size_t) {
    if (error) return self->Finish({Code::kPeerLost, error.message()}, 0);
    FrameHeader theirs;
    const Status parsed = ParseFrameHeader(self->in_, &theirs, FrameType::kResume);
    self->Finish(parsed, theirs.sequence);
  });
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
