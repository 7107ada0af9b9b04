// Sink: one of the launcher's own two output streams. Writing to it never blocks, however slow its reader is.
//
// Threads: one.
#pragma once

#include <poll.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "launcher/job/output.h"

namespace annulus {

class Sink : public LineTarget {
 public:
  // Writes to `fd`, which stays the caller's. A terminal or a pipe is opened once more, to be non-blocking for this
  // process alone: O_NONBLOCK would otherwise affect everybody who shares the open file, such as the shell.
  explicit Sink(int fd);
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  ~Sink() override;

  int fd() const { return fd_; }
  bool full() const override { return Pending() >= kFullBytes; }
  bool empty() const { return Pending() == 0; }
  bool broken() const override { return broken_; }
  // errno of the first write that failed although nobody has closed the other end (a full disk); 0: none. What cannot
  // be written is dropped, and later output is tried again.
  int error() const { return error_; }
  void AddBytes(std::string_view bytes) override;

  // The entry for poll. It is polled even with nothing to write, to learn that the reader has gone.
  pollfd Polled();
  // When to call Polled again at the latest.
  Deadline retry() const { return retry_; }
  // Handles the result of poll: writes a part, or notes that nobody reads.
  void OnPolled(short events);

 private:
  static constexpr size_t kFullBytes = 1 << 20;
  static constexpr Nanoseconds kRetryTime = 20 * kMillisecond;

  int writer() const { return own_ >= 0 ? own_ : fd_; }
  void WriteSome();
  void OnError(int error);
  void Break();
  void Drop();
  size_t Pending() const { return buffer_.size() - written_; }

  const int fd_;
  const bool terminal_;
  const int own_;  // fd_ opened once more; -1 where that is impossible.
  bool broken_ = false;
  int error_ = 0;
  int refusals_ = 0;  // Writes since the last one that succeeded.
  Deadline retry_ = kNoDeadline;
  std::string buffer_;
  size_t written_ = 0;  // Bytes of buffer_ that have been written.
};

}  // namespace annulus
