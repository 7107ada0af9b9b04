// ControlConnections: the sockets that bootstrap created and authenticated, to be passed to the control thread.
//
// Threads: a value; one at a time.
#pragma once

#include <unistd.h>

#include <utility>
#include <vector>

namespace annulus {

class ControlConnections {
 public:
  ControlConnections() = default;
  ControlConnections(ControlConnections&& other) noexcept : fds_(std::exchange(other.fds_, {})) {}
  ControlConnections& operator=(ControlConnections&& other) noexcept {
    std::swap(fds_, other.fds_);
    return *this;
  }
  ~ControlConnections() {
    for (const int fd : fds_) {
      if (fd >= 0) ::close(fd);
    }
  }

  // Takes over `fd`, a connected TCP socket to `rank`.
  void Put(int rank, int fd) {
    if (fds_.size() <= static_cast<size_t>(rank)) fds_.resize(rank + 1, -1);
    std::swap(fds_[rank], fd);
    if (fd >= 0) ::close(fd);
  }

  // Releases the socket to `rank`, which the caller must close. -1 when there is none.
  int Take(int rank) { return static_cast<size_t>(rank) < fds_.size() ? std::exchange(fds_[rank], -1) : -1; }

 private:
  std::vector<int> fds_;
};

}  // namespace annulus
