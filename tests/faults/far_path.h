// FarPath: a way to a port of this host on which everything takes long: each byte arrives 80 ms late, in both
// directions. A connection over it is there at once, so whoever listens sees a peer that is slow to say its first word.
//
// Threads: one of its own; the functions from any.
#pragma once

#include <deque>
#include <list>
#include <string>
#include <thread>

#include "base/clock.h"

namespace annulus {

class FarPath {
 public:
  static constexpr Nanoseconds kDelay = 80 * kMillisecond;

  // To `port` of 127.0.0.1, which sees connections from `from`, another loopback address.
  FarPath(int port, const std::string& from);
  ~FarPath();
  FarPath(const FarPath&) = delete;
  FarPath& operator=(const FarPath&) = delete;

  // Where the way begins.
  std::string address() const { return "127.0.0.1:" + std::to_string(own_port_); }

 private:
  struct Piece {
    Nanoseconds due;
    std::string bytes;  // Empty: the end.
  };
  struct Way {
    int from;
    int to;
    bool ended = false;  // Nothing more comes.
    std::deque<Piece> pieces;
  };
  struct Connection {
    Connection(int near_end, int far_end)
        : near(near_end), far(far_end), up{near_end, far_end, false, {}}, down{far_end, near_end, false, {}} {}
    const int near;
    const int far;
    Way up;
    Way down;
    bool over = false;
  };

  void Run(const std::stop_token& stop);
  void Accept();
  void Move(Connection* connection);
  static void Receive(Way* way);
  // Returns false when the receiver is gone.
  static bool Deliver(Way* way);

  const int port_;
  const std::string from_;
  int listener_ = -1;
  int own_port_ = 0;
  std::list<Connection> connections_;
  std::jthread thread_;
};

}  // namespace annulus
