// ReservedPort: a TCP port of this host that nobody else gets while this lives.
//
// The socket is bound but never listens, so that whoever knows the port can listen on it with SO_REUSEADDR (as Listen
// does) or SO_REUSEPORT and gets every connection.
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

  // At `host`, a numeric IPv4 or IPv6 address of this machine; where it is none, as behind an address translation, at
  // all addresses. Once. Errors: kSystem.
  Status Reserve(const std::string& host);

  int port() const { return port_; }

 private:
  int socket_ = -1;
  int port_ = 0;
};

}  // namespace annulus
