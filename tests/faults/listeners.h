// What processes listen on, as the kernel tells: TCP ports and UNIX sockets of the own network namespace.
//
// Threads: plain functions.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <compare>
#include <string>
#include <vector>

namespace annulus {

// One listening socket.
struct Listener {
  int port = 0;      // TCP, on the loopback address; 0 for a UNIX socket.
  std::string name;  // UNIX: the abstract name, without the zero byte before it.
  auto operator<=>(const Listener&) const = default;
};

// Listeners of processes that this one may inspect; processes that have ended have none.
std::vector<Listener> ListenersOf(const std::vector<pid_t>& pids);

// A connected socket, which the caller owns; -1 when nobody listens there any more, or nobody accepts for 2 s.
int ConnectTo(const Listener& listener);

}  // namespace annulus
