// TcpGreeting: the first frames of a connection that takes the place of a broken one. Each end says how much of the
// stream it has received, so that the other goes on from there.
//
// Threads: the one that runs the socket's io_context. Held by shared_ptr; handlers that are still queued keep it alive.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"
#include "transport/security/sealed_socket.h"
#include "transport/wire/frame.h"

namespace annulus {

class TcpGreeting : public std::enable_shared_from_this<TcpGreeting> {
 public:
  // `received`: what the peer says; valid after OK.
  using Done = std::function<void(const Status& status, uint64_t received)>;

  explicit TcpGreeting(SealedSocket socket) : socket_(std::move(socket)) {}

  // Says `received`, and calls `done` once, unless Cancel comes first.
  // Errors: kPeerLost  the connection ended, in an orderly way if without an errno; kProtocol  this is no such frame.
  void Start(uint64_t received, Done done);
  // Reads what has arrived of the peer's greeting, as the reactor will. May call `done`.
  void Look();
  // Resets the connection; `done` will not be called any more.
  void Cancel();
  int fd() { return socket_.socket.native_handle(); }
  SealedSocket TakeSocket() { return std::move(socket_); }

 private:
  void Finish(const Status& status, uint64_t received);

  SealedSocket socket_;
  Done done_;
  std::array<std::byte, kFrameHeaderBytes> out_{};
  std::array<std::byte, kFrameHeaderBytes> in_{};
  size_t bytes_in_ = 0;
};

}  // namespace annulus
