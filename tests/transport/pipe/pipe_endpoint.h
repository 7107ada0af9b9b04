// PipeEndpoint: one end of a link that carries slices over a UNIX socket, one after the other, through slots.
//
// A slice is its tag, its length and its data. It is sent when all of it is ready, and read when a receive is posted.
//
// Threads: those of the contract.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "tests/transport/pipe/pipe_halves.h"
#include "transport/stream_socket.h"
#include "transport/transport.h"

namespace annulus {

class PipeEndpoint final : public Endpoint {
 public:
  // `socket` is connected, authenticated and non-blocking.
  PipeEndpoint(const TransportConfig& config, int peer, StreamSocket socket);

  const Limits& limits() const override { return limits_; }
  int peer() const override { return peer_; }
  std::string Describe() const override { return "pipe to rank " + std::to_string(peer_); }
  EndpointStats stats() const override;
  Status AcquireSlot(size_t bytes, std::byte** slot) override;
  Status PostSend(Send* send) override;
  Status PostRecv(Recv* recv) override;
  void Release(Recv* recv) override;
  Status Progress(bool* moved) override;
  bool Arm() override;
  bool Close() override;

 private:
  // Whether handlers of the reactor, which may outlive the endpoint, wait for the socket.
  struct Armed {
    bool read = false;
    bool write = false;
  };

  Status LostStatus() const;
  void Fail(Status status);

  const int peer_;
  const Limits limits_;
  const size_t memory_bytes_;
  StreamSocket socket_;
  PipeWriter writer_;
  PipeReader reader_;
  std::shared_ptr<Armed> armed_ = std::make_shared<Armed>();
  Status status_;
};

}  // namespace annulus
