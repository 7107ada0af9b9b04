// Connections that something on the way has forgotten, as a firewall that restarts does: neither end is told, and
// whatever an end sends is answered by a reset.
//
// Threads: any; MayForget moves the calling one to another network.
#pragma once

#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace annulus {

// Closes a TCP socket without a word to its peer. False where the system does not permit it.
inline bool Forget(int fd) {
  constexpr int kOn = 1;
  const bool silent = ::setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &kOn, sizeof kOn) == 0;
  ::close(fd);
  return silent;
}

// Whether Forget works for sockets of this thread and those that it starts. Where that needs a network of their own,
// they get one, which has nothing but a loopback.
inline bool MayForget() {
  if (Forget(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))) return true;
  if (::unshare(CLONE_NEWNET) != 0) return false;
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ifreq loopback{.ifr_ifrn = {"lo"}, .ifr_ifru = {}};
  bool up = ::ioctl(fd, SIOCGIFFLAGS, &loopback) == 0;
  loopback.ifr_flags = static_cast<short>(loopback.ifr_flags | IFF_UP);
  up = up && ::ioctl(fd, SIOCSIFFLAGS, &loopback) == 0;
  return Forget(fd) && up;
}

}  // namespace annulus
