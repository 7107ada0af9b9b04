// ControlDial: one attempt of a rank to connect to rank 0's ControlDoor.
//
// Threads: the control thread only. Held by shared_ptr; handlers that are still queued keep it alive.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/secret.h"
#include "base/status.h"
#include "transport/security/stream_handshake.h"
#include "transport/stream_socket.h"

namespace annulus {

class ControlDial : public std::enable_shared_from_this<ControlDial> {
 public:
  // As ControlNet::Dialled.
  using Done = std::function<void(const Status& status, SealedFd connection)>;

  ControlDial(asio::io_context* context, const std::string& key, const Hello& hello);

  // Dials `door`, for at most `limit`. Calls `done` once, unless Cancel comes first.
  void Start(const StreamEndpoint& door, Nanoseconds limit, Done done);
  // `done` will not be called any more.
  void Cancel();

 private:
  void Prove();
  void Finish(const Status& status);

  const Secret key_;
  const Hello hello_;
  StreamSocket socket_;
  asio::steady_timer timer_;
  std::shared_ptr<StreamHandshake> handshake_;
  Done done_;
};

}  // namespace annulus
