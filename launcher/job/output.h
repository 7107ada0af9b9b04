// Output: copies the ranks' output to the launcher's own, line by line.
//
// A LineSource reads one rank's stream and passes whole lines to a LineTarget: a Sink (sink.h), which is one of the
// launcher's two streams, or a stream to another host. A line may contain any bytes. When the target is full its
// sources are not read, so a slow reader slows the ranks down and nothing is lost.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace annulus {

class LineTarget {
 public:
  virtual ~LineTarget() = default;

  virtual bool full() const = 0;
  // Whether nobody reads any more; bytes that are added are then dropped.
  virtual bool broken() const = 0;
  // Queues bytes of a line that the next bytes continue.
  virtual void AddBytes(std::string_view bytes) = 0;

  // Queues prefix, text and a newline.
  void AddLine(std::string_view prefix, std::string_view text);
};

class LineSource {
 public:
  // Takes ownership of `fd`, which must be non-blocking. `prefix` starts each line; without one, bytes are passed on as
  // they come.
  LineSource(int fd, LineTarget* target, std::optional<std::string> prefix)
      : fd_(fd), target_(target), prefix_(std::move(prefix)) {}
  LineSource(const LineSource&) = delete;
  LineSource& operator=(const LineSource&) = delete;
  ~LineSource() { Close(); }

  int fd() const { return fd_; }  // -1 once closed.
  LineTarget* target() const { return target_; }

  // Reads once, and closes at the end of the stream. Returns false when there was nothing to read.
  bool ReadSome();

  // Reads everything that is there. All writers are gone, so these are the last bytes. An empty stream counts as ended,
  // even if another process keeps it open.
  void Drain();

  // Flushes the last line, which had no newline, and closes. The rank's next write fails as in a broken pipeline.
  void Close();

 private:
  static constexpr size_t kReadBytes = 64 * 1024;
  // A longer line is split into lines of this length.
  static constexpr size_t kMaxLineBytes = 64 * 1024;

  void PassOn(std::string_view bytes);

  int fd_;
  LineTarget* const target_;
  const std::optional<std::string> prefix_;
  std::string line_;  // A line that has begun and has no newline yet.
};

}  // namespace annulus
