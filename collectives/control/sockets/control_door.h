// ControlDoor: where rank 0 listens for ranks whose control connection broke, as long as the communicator lives.
//
// Threads: the control thread only; Open before it starts.
#pragma once

#include <asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "base/identity.h"
#include "base/status.h"
#include "transport/security/door.h"
#include "transport/stream_socket.h"

namespace annulus {

// The hello of connections that go on where a broken control connection ended. The identity is that of the links.
Hello ControlHello(const Identity& identity, int rank, int nranks, bool encrypts);

class ControlDoor {
 public:
  // Whether a rank may come back.
  using Expects = std::function<bool(int rank)>;
  // A rank came back; the callee owns the descriptor.
  using Returned = std::function<void(int rank, SealedFd connection)>;

  // `hello` has the purpose, identity, size and rank of this side.
  ControlDoor(asio::io_context* context, const std::string& key, const Hello& hello, Expects expects,
              Returned returned);
  ControlDoor(const ControlDoor&) = delete;
  ControlDoor& operator=(const ControlDoor&) = delete;
  ~ControlDoor() { Close(); }

  // Takes over `listener`, a socket that listens. Errors: kSystem.
  Status Open(int listener);
  void Close();

 private:
  StreamListener listener_;
  std::shared_ptr<Door> door_;
};

// Listens at any free port of `host`, a numeric address of this machine. Errors: kInvalidArgument, kSystem.
Status ListenForReturns(const std::string& host, int* listener, int* port);

}  // namespace annulus
