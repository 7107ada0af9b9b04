// SocketNet: the control plane's sockets and timers, of one io_context.
//
// Threads: the one that runs the io_context; OpenDoor and Adopt before it starts, too.
#pragma once

#include <asio/io_context.hpp>
#include <memory>

#include "base/secret.h"
#include "collectives/control/control_net.h"
#include "collectives/control/sockets/control_dial.h"
#include "collectives/control/sockets/control_door.h"
#include "transport/security/auth.h"

namespace annulus {

class SocketNet : public ControlNet {
 public:
  // `hello` is this rank's, for connections that take the place of broken ones. The context outlives the net.
  SocketNet(asio::io_context* context, Secret key, const Hello& hello);
  ~SocketNet() override;

  Nanoseconds Now() const override { return annulus::Now(); }
  std::unique_ptr<ControlTimer> MakeTimer() override;
  Status Adopt(SealedFd connection, size_t most_bytes, std::shared_ptr<MessageStream>* stream) override;
  Status OpenDoor(int listener, Expects expects, Returned returned) override;
  void Dial(const StreamEndpoint& door, Nanoseconds limit, Dialled done) override;
  void CancelDial() override;

 private:
  asio::io_context* const context_;
  const Secret key_;
  const Hello hello_;
  std::unique_ptr<ControlDoor> door_;  // Null until OpenDoor.
  std::shared_ptr<ControlDial> dial_;  // Null while nothing is dialled.
};

}  // namespace annulus
