// CuttingProxy: passes the first connection to a rendezvous on until it cuts it, and all later ones whole. Or it is
// silent for a while.
//
// Threads: one of its own; the functions from any.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "tests/transport/forgotten.h"

namespace annulus {

// A socket that listens at a free port of 127.0.0.1, and the port.
inline std::pair<int, int> ListenAnywhere() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  ANNULUS_CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) == 0 && ::listen(fd, 64) == 0);
  ANNULUS_CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
  return {fd, ntohs(address.sin_port)};
}

enum class CutKind {
  kBothEnds,    // Both ends are reset.
  kRankFirst,   // The rank's end is reset; rank 0's end a while later.
  kJudgeFirst,  // The other way round.
  kForgotten,   // Whatever an end sends from now on, a probe too, is answered by a reset. Needs MayForget().
  kSilence,     // Nothing passes any more.
  kPause,       // Nothing passes for a while, over this connection or another; then all goes on, and nothing is lost.
};

class CuttingProxy {
 public:
  // Cuts the first connection instead of passing on piece `piece` of what it carries, counted from 0 over both
  // directions: each message of a handshake or a rendezvous is one piece or more. `pause` is how long kPause is.
  CuttingProxy(int target_port, CutKind kind, int piece, Nanoseconds pause = 0)
      : target_port_(target_port), kind_(kind), piece_(piece), pause_(pause) {
    std::tie(listener_, port_) = ListenAnywhere();
    thread_ = std::thread([this] { Run(); });
  }
  ~CuttingProxy() {
    stop_.store(true);
    thread_.join();
    ::close(listener_);
    for (const Pair& pair : pairs_) {
      for (const int fd : pair.fds) {
        if (fd >= 0) ::close(fd);
      }
    }
  }

  int port() const { return port_; }
  bool was_cut() const { return was_cut_.load(); }

 private:
  static constexpr Nanoseconds kLag = 300 * kMillisecond;
  struct Pair {
    int fds[2] = {-1, -1};  // The rank's end, rank 0's end.
    bool ended[2] = {};
    Deadline reset_at[2] = {kNoDeadline, kNoDeadline};
    bool silent = false;
  };

  void Run() {
    while (!stop_.load()) {
      const bool pauses = Now() < paused_until_;
      std::vector<pollfd> polled = {{pauses ? -1 : listener_, POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        for (int end = 0; end < 2; ++end) {
          const bool listens = !pauses && !pair.silent && !pair.ended[end];
          polled.push_back({listens ? pair.fds[end] : -1, POLLIN, 0});
        }
      }
      ::poll(polled.data(), polled.size(), 5);
      for (size_t i = 1; i < polled.size(); ++i) {
        if (polled[i].revents != 0) PassOn(&pairs_[(i - 1) / 2], static_cast<int>((i - 1) % 2));
      }
      for (Pair& pair : pairs_) ResetDue(&pair);
      if (polled[0].revents != 0) Accept();
    }
  }
  void Accept() {
    Pair pair;
    pair.fds[0] = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    pair.fds[1] = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(target_port_));
    if (::connect(pair.fds[1], reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      for (const int fd : pair.fds) ::close(fd);  // Nobody listens there any more.
      return;
    }
    pairs_.push_back(pair);
  }
  void PassOn(Pair* pair, int from) {
    if (pair->silent || pair->fds[from] < 0 || Now() < paused_until_) return;
    const bool is_first = pair == &pairs_[0];
    if (kind_ == CutKind::kPause && is_first && pieces_ == piece_ && !was_cut_.load()) {
      paused_until_ = Now() + pause_;
      was_cut_.store(true);
      return;
    }
    char buffer[16384];
    const ssize_t got = ::read(pair->fds[from], buffer, sizeof buffer);
    if (got <= 0) {
      pair->ended[from] = true;
      if (pair->fds[1 - from] >= 0) ::shutdown(pair->fds[1 - from], SHUT_WR);
      return;
    }
    if (is_first && pieces_++ == piece_ && kind_ != CutKind::kPause) return Cut(pair);
    if (::send(pair->fds[1 - from], buffer, got, MSG_NOSIGNAL) < 0) pair->ended[from] = true;
  }
  void Cut(Pair* pair) {
    pair->silent = true;
    if (kind_ == CutKind::kForgotten) {
      for (int& fd : pair->fds) {
        ANNULUS_CHECK(Forget(std::exchange(fd, -1)));
      }
    } else if (kind_ != CutKind::kSilence) {
      pair->reset_at[0] = Now() + (kind_ == CutKind::kJudgeFirst ? kLag : 0);
      pair->reset_at[1] = Now() + (kind_ == CutKind::kRankFirst ? kLag : 0);
    }
    was_cut_.store(true);
  }
  static void ResetDue(Pair* pair) {
    for (int end = 0; end < 2; ++end) {
      if (Now() < pair->reset_at[end] || pair->fds[end] < 0) continue;
      const linger reset{1, 0};
      ::setsockopt(pair->fds[end], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      ::close(std::exchange(pair->fds[end], -1));
    }
  }

  const int target_port_;
  const CutKind kind_;
  const int piece_;
  const Nanoseconds pause_;
  Deadline paused_until_ = 0;
  int listener_ = -1;
  int port_ = 0;
  int pieces_ = 0;
  std::vector<Pair> pairs_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> was_cut_{false};
  std::thread thread_;
};

}  // namespace annulus
