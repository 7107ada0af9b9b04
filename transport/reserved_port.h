// ReservedPort: a TCP port of this host that nobody else gets while this object lives.
//
// The socket listens from the beginning: a port that is only bound could be taken by any user's SO_REUSEADDR. Rank 0
// gets a copy of the socket (port_handout.h, BootstrapConfig::listener). Ranks that connect before wait in its queue.
//
// Threads: one.
#pragma once

#include <string>

#include "base/status.h"

namespace annulus {

class ReservedPort {
 public:
  ReservedPort() = default;
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  ~ReservedPort();

  // Reserves a port at `host`, a numeric IPv4 or IPv6 address. If that is not an address of this machine, as behind an
  // address translation, reserves the port at all addresses. Call once. Errors: kSystem.
  Status Reserve(const std::string& host);

  int port() const { return port_; }
  // The listening socket; -1 before Reserve.
  int listener() const { return socket_; }

 private:
  int socket_ = -1;
  int port_ = 0;
};

}  // namespace annulus
