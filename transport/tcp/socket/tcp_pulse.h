// TcpPulse: notices that a connection has fallen silent, long before its kernel gives it up. Only its path can do that:
// a peer that computes, or is stopped, still has a kernel that answers.
//
// What was sent and is not acknowledged is sent again by the kernel. Who only waits for data sends nothing; so after a
// while it sends a frame that asks for an acknowledgement. Where that cannot be sent, in the middle of another frame,
// or was sent often already, its kernel asks the peer's for a sign of life, as keepalive does.
//
// Threads: those of the endpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/clock.h"

namespace annulus {

class TcpPulse {
 public:
  // How often to look while somebody waits.
  static constexpr Nanoseconds kLook = 100 * kMillisecond;
  // Frames that ask, between two frames that bring data: a peer that computes does not read them.
  static constexpr int kMostAsked = 20;

  struct Watched {
    int fd = -1;
    bool awaits = false;    // Something is to come over the connection.
    uint64_t received = 0;  // Bytes that have come.
  };

  // Looks at the connection. `ask` sends a frame that asks, or returns false. Returns whether it has fallen silent.
  bool IsSilent(const Watched& watched, const std::function<bool()>& ask);
  // Whether the kernel was told to ask. It goes on until the next look at a connection that is not quiet any more, or
  // until StopAsking.
  bool asks() const { return usual_idle_s_.has_value(); }
  void StopAsking(int fd);

 private:
  void AskByKernel(int fd);

  std::optional<Nanoseconds> owed_since_;  // The peer's kernel has owed an acknowledgement at every look since then.
  uint64_t received_ = 0;                  // At the latest look.
  int asked_ = 0;                          // Frames that asked since that changed.
  std::optional<int> usual_idle_s_;        // What TCP_KEEPIDLE is while this does not ask, in seconds.
};

}  // namespace annulus
