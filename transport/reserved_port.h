// ReservedPort: a TCP port of this host that nobody else gets while this object lives.
//
// The socket is bound but never listens. Whoever knows the port can listen on it with SO_REUSEADDR (as Listen does) or
// SO_REUSEPORT and gets every connection.
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

 private:
  int socket_ = -1;
  int port_ = 0;
};

}  // namespace annulus
