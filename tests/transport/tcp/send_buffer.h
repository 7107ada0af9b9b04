// MostUnacknowledged: how much a TCP socket of this system may have sent without an acknowledgement.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <fstream>

namespace annulus {

// In bytes: the most that the kernel lets a send buffer grow to, and the rest of a last packet and of a sealed record.
inline size_t MostUnacknowledged() {
  size_t least = 0, first = 0, most = 0;
  std::ifstream("/proc/sys/net/ipv4/tcp_wmem") >> least >> first >> most;
  return most + 2 * 65536;
}

}  // namespace annulus
