// Output: carries the ranks' output to the launcher's own, line by line.
//
// A LineSource reads one rank's stream and hands whole lines to a Sink, one of the launcher's two streams. Any bytes
// may be in a line. When the Sink's buffer is full its sources are not read, so a slow reader slows the ranks down and
// loses nothing.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace annulus {

class Sink {
 public:
  explicit Sink(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  bool full() const { return Pending() >= kFullBytes; }
  bool empty() const { return Pending() == 0; }
  // Nobody reads any more; what is added is dropped.
  bool broken() const { return broken_; }

  // Queues prefix, text and a newline.
  void AddLine(std::string_view prefix, std::string_view text);

  // Writes a part; call it when poll finds the descriptor writable, it then does not block.
  void WriteSome();
  void Break();

 private:
  static constexpr size_t kFullBytes = 1 << 20;

  size_t Pending() const { return buffer_.size() - written_; }

  const int fd_;
  bool broken_ = false;
  std::string buffer_;
  size_t written_ = 0;  // So many bytes of buffer_ are out.
};

class LineSource {
 public:
  // Takes `fd`, which must be non-blocking. `prefix` opens each line.
  LineSource(int fd, Sink* sink, std::string prefix) : fd_(fd), sink_(sink), prefix_(std::move(prefix)) {}
  LineSource(const LineSource&) = delete;
  LineSource& operator=(const LineSource&) = delete;
  ~LineSource() { Close(); }

  int fd() const { return fd_; }  // -1 once closed.
  Sink* sink() const { return sink_; }

  // Reads once, and closes at the end of the stream. Returns false when nothing was there.
  bool ReadSome();

  // Flushes the last line, which had no newline, and closes: the rank's next write fails as in a broken pipeline.
  void Close();

 private:
  static constexpr size_t kReadBytes = 64 * 1024;
  // A longer line is cut into lines of this length.
  static constexpr size_t kMaxLineBytes = 64 * 1024;

  void Take(std::string_view bytes);

  int fd_;
  Sink* const sink_;
  const std::string prefix_;
  std::string line_;  // Begun, but without its newline yet.
};

}  // namespace annulus
