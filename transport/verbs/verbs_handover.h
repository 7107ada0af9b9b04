// VerbsHandover: sets up the queue pairs of a link over its authenticated stream.
//
// Each end sends its greeting, connects its queue pair to the peer's once that one's has come, and says that it is
// ready. Nobody sends a slice before the peer is ready, since a device drops what comes for a queue pair that is not.
//
// Threads: the one that drives the reactor.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "base/status.h"
#include "transport/address.h"
#include "transport/verbs/verbs_endpoint.h"
#include "transport/verbs/verbs_format.h"

namespace annulus {

class VerbsHandover {
 public:
  // `socket` is non-blocking and outlives the handover.
  VerbsHandover(std::unique_ptr<VerbsEndpoint> endpoint, StreamSocket* socket)
      : endpoint_(std::move(endpoint)), socket_(socket) {}

  // Opens the endpoint and greets the peer. Errors: those of VerbsEndpoint::Open, kPeerLost.
  Status Start();

  // Reads what the peer has sent, without blocking; done() returns whether that was everything. Errors: kProtocol,
  // kPeerLost, those of VerbsEndpoint::Connect.
  Status Continue();

  bool done() const { return in_bytes_ == in_.size(); }
  int peer() const { return endpoint_->peer(); }
  // The endpoint, with its stream; once done().
  std::unique_ptr<VerbsEndpoint> Take();

 private:
  static constexpr size_t kReadyBytes = sizeof(kVerbsReady);

  Status TakeGreeting();
  Status TakeReady() const;
  Status Say(const std::byte* data, size_t bytes);
  Status Lost(const char* what, int os_errno) const;

  std::unique_ptr<VerbsEndpoint> endpoint_;
  StreamSocket* const socket_;
  std::array<std::byte, VerbsGreeting::kBytes + kReadyBytes> in_{};
  size_t in_bytes_ = 0;
};

}  // namespace annulus
