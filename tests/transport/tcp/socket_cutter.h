// SocketCutter: a network of its own for one test, in which it resets TCP connections from outside, as `ss -K` does.
// One end is told at once; the other gets a reset.
//
// Threads: Create in the thread that starts all others, before it opens sockets; then any one.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace annulus {

class SocketCutter {
 public:
  // One end of a connection.
  struct End {
    bool is_ipv6 = false;
    std::string from, to;  // As /proc/net/tcp writes them.
    uint32_t own_port = 0;
  };

  // Moves the calling thread to a network namespace that has only a loopback interface. Null where the system does not
  // permit it; `why` says so.
  static std::unique_ptr<SocketCutter> Create(std::string* why);
  ~SocketCutter();
  SocketCutter(const SocketCutter&) = delete;
  SocketCutter& operator=(const SocketCutter&) = delete;

  // The ends of all connections; of those by IPv6 only where there are no others.
  std::vector<End> Ends() const;
  // Resets that connection, from that end. Returns whether it was still there.
  bool Cut(const End& end);
  // Resets one of the connections. Returns whether there was one.
  bool CutAny(std::minstd_rand* random);

 private:
  explicit SocketCutter(int socket) : socket_(socket) {}

  const int socket_;  // To the kernel's list of sockets.
};

}  // namespace annulus
