// InputReader: annulus-run's standard input, sent to rank 0 on another host one portion at a time.
//
// Threads: one.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <string>

namespace annulus {

class InputReader {
 public:
  // Polls for input when rank 0 can take more. A terminal is read only by the process group in its foreground.
  pollfd Polled() const { return {wanted_ && !ended_ && MayRead() ? STDIN_FILENO : -1, POLLIN, 0}; }

  // The next portion; "" at the end of the input; nothing when there is none.
  std::optional<std::string> Read(short events) {
    if (events == 0) return std::nullopt;
    std::array<char, kPortionBytes> bytes;
    const ssize_t got = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return std::nullopt;
    ended_ = got <= 0;
    wanted_ = false;
    return std::string(bytes.data(), got > 0 ? static_cast<size_t>(got) : 0);
  }

  // Rank 0 has started, or has taken what it was sent.
  void Want() { wanted_ = true; }

 private:
  static constexpr size_t kPortionBytes = 16 * 1024;

  static bool MayRead() { return isatty(STDIN_FILENO) == 0 || tcgetpgrp(STDIN_FILENO) == getpgrp(); }

  bool wanted_ = false;
  bool ended_ = false;
};

}  // namespace annulus
