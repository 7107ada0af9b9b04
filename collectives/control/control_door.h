// ControlDoor: where rank 0 listens for ranks whose control connection broke, as long as the communicator lives.
//
// Whoever dials must prove the job key. Strangers are dropped after a short time, and never more than a few at once are
// listened to.
//
// Threads: the control thread only; Open before it starts.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "transport/address.h"
#include "transport/security/stream_handshake.h"

namespace annulus {

class ControlDoor {
 public:
  // Whether a rank may come back.
  using Expects = std::function<bool(int rank)>;
  // A rank came back; the callee owns `fd`.
  using Returned = std::function<void(int rank, int fd)>;

  // `hello` has the purpose, job, size and rank of this side.
  ControlDoor(asio::io_context* context, const std::string& key, const Hello& hello, Expects expects,
              Returned returned);
  ControlDoor(const ControlDoor&) = delete;
  ControlDoor& operator=(const ControlDoor&) = delete;
  ~ControlDoor() { Close(); }

  // Listens at any free port of the host in `local`, an address of this machine. Errors: kInvalidArgument, kSystem.
  Status Open(const StreamEndpoint& local);
  int port() const { return port_; }
  void Close();

 private:
  struct Visitor {
    std::shared_ptr<StreamHandshake> handshake;
    Deadline deadline;
  };

  void Accept();
  void Receive(StreamSocket socket);
  void Finish(const std::shared_ptr<StreamHandshake>& handshake, const Status& status);
  void Forget(const std::shared_ptr<StreamHandshake>& handshake);
  void Sweep();

  const std::string key_;
  const Hello hello_;
  const Expects expects_;
  const Returned returned_;
  StreamListener listener_;
  asio::steady_timer timer_;      // For the next sweep, or the next accept after an error.
  std::deque<Visitor> visitors_;  // The oldest first.
  int port_ = 0;
};

}  // namespace annulus
