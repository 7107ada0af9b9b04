// TcpPulse: notices that a connection has fallen silent, long before its kernel gives it up. Only its path can do that:
// a peer that computes, or is stopped, still has a kernel that answers.
//
// What was sent and is not acknowledged is sent again by the kernel. Who only waits sends nothing; so after a while it
// sends a frame that asks for an acknowledgement, also where nothing is to come: its own next slice would otherwise be
// the first to find the path broken. Where no such frame can be sent, in the middle of another one, or it was sent
// often already, the kernel of who waits for data asks the peer's for a sign of life, as keepalive does.
//
// Threads: those of the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/clock.h"

namespace annulus {

class TcpPulse {
 public:
  // How often to look while somebody waits.
  static constexpr Nanoseconds kLook = 100 * kMillisecond;
  // Frames that ask, between others that carry data: a peer that computes does not read them, and a connection that is
  // not used needs none.
  static constexpr int kMostAsked = 20;

  struct Watched {
    int fd = -1;
    bool awaits = false;   // Something is to come over the connection.
    uint64_t carried = 0;  // Bytes that were sent over it, or have come.
  };

  // Looks at the connection. `ask` sends a frame that asks, and returns its number of bytes; 0: that is not possible
  // now. Returns whether the connection has fallen silent.
  bool IsSilent(const Watched& watched, const std::function<size_t()>& ask);
  // Whether the kernel was told to ask. It goes on until the next look at a connection that is not quiet any more, or
  // until StopAsking.
  bool asks() const { return usual_idle_s_.has_value(); }
  void StopAsking(int fd);

 private:
  void AskByKernel(int fd);

  std::optional<uint64_t> owes_after_;  // PathAnswers::owes_after at the latest look.
  Nanoseconds owed_since_ = 0;          // When that was seen first.
  uint64_t carried_ = 0;                // At the latest look, and what asked since.
  int asked_ = 0;                       // Frames that asked since something else was carried.
  std::optional<int> usual_idle_s_;     // What TCP_KEEPIDLE is while this does not ask, in seconds.
};

}  // namespace annulus
