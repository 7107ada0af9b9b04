// ReadableWait: lets the reactor wake when a socket can be read, for whoever asks again after every wake. There is one
// wait at a time, however often it is asked for.
//
// Threads: the one that drives the reactor.
#pragma once

#include <asio/error_code.hpp>
#include <memory>

#include "transport/stream_socket.h"

namespace annulus {

class ReadableWait {
 public:
  // Waits for `socket`, unless that is what the last call did and it has not become readable since.
  void For(StreamSocket* socket) {
    if (socket == socket_ && !*over_) return;
    socket_ = socket;
    over_ = std::make_shared<bool>(false);
    socket->async_wait(StreamSocket::wait_read, [over = over_](const asio::error_code&) { *over = true; });
  }

 private:
  const StreamSocket* socket_ = nullptr;  // The socket asked for last.
  std::shared_ptr<bool> over_;            // Whether its wait is over; handlers that are still queued keep it.
};

}  // namespace annulus
