// TcpPulse: notices that a connection has fallen silent, long before its kernel gives it up. Only its path can do that:
// a peer that computes, or is stopped, still has a kernel that answers.
//
// What was sent and is not acknowledged is sent again by the kernel. Who only waits for data sends nothing; so after a
// while this asks the peer's kernel for a sign of life, as keepalive does.
//
// Threads: those of the endpoint.
#pragma once

#include <optional>

#include "base/clock.h"

namespace annulus {

class TcpPulse {
 public:
  // How often to look while somebody waits.
  static constexpr Nanoseconds kLook = 250 * kMillisecond;

  // Looks at the connection. `awaits`: something is to come over it. Returns whether it has fallen silent.
  bool IsSilent(int fd, bool awaits);
  // Whether the kernel was told to ask. It goes on until the next look at a connection that is not quiet any more, or
  // until StopAsking.
  bool asks() const { return usual_idle_s_.has_value(); }
  void StopAsking(int fd);

 private:
  void Ask(int fd);

  std::optional<int> usual_idle_s_;  // What TCP_KEEPIDLE is while this does not ask, in seconds.
};

}  // namespace annulus
