// EndpointPair: both ends of a link between two ranks, in one process, of whichever backend `select` lists by that
// name.
//
// Threads: Open blocks; then each end may be driven by a thread of its own.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "base/status.h"
#include "transport/reactor.h"
#include "transport/transport.h"

namespace annulus::perf {

class EndpointPair {
 public:
  static Status Open(const std::string& backend, size_t slot_bytes, std::unique_ptr<EndpointPair>* pair);
  ~EndpointPair();
  EndpointPair(const EndpointPair&) = delete;
  EndpointPair& operator=(const EndpointPair&) = delete;

  Endpoint& end(size_t side) { return *endpoints_[side]; }

 private:
  EndpointPair() = default;

  std::array<Reactor, 2> reactors_;  // First: they outlive the transports.
  std::array<std::unique_ptr<Transport>, 2> transports_;
  std::array<std::unique_ptr<Endpoint>, 2> endpoints_;
};

}  // namespace annulus::perf
