// FramedOutput: one stream of all ranks of an agent's host, sent to annulus-run in frames of whole lines.
//
// It sends no more than it has credit for. So a slow reader at the other end slows the ranks down, and everything else
// on the channel waits for at most that much output.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "launcher/job/output.h"
#include "launcher/remote/channel.h"

namespace annulus {

// Numbers of the streams in frames.
constexpr int kOutStream = 1;
constexpr int kErrStream = 2;

class FramedOutput : public LineTarget {
 public:
  static constexpr int64_t kWindowBytes = 1 << 20;  // The initial credit.

  FramedOutput(int stream, Channel* channel) : stream_(stream), channel_(channel) {}

  bool full() const override { return credit_ <= 0 || static_cast<int64_t>(buffer_.size()) >= kFrameBytes; }
  bool broken() const override { return broken_; }
  bool empty() const { return buffer_.empty(); }
  void AddBytes(std::string_view bytes) override {
    if (!broken_) buffer_.append(bytes);
  }

  void Grant(int64_t bytes) { credit_ += bytes; }
  void Break() {
    broken_ = true;
    buffer_.clear();
  }

  // Passes the gathered lines to the channel. Call it after each round of reading.
  void Flush() {
    if (buffer_.empty()) return;
    channel_->Send(FrameKind::kOutput, ByteWriter().I64(stream_).LongText(buffer_).bytes());
    credit_ -= static_cast<int64_t>(buffer_.size());
    buffer_.clear();
  }

 private:
  // Frame size: large enough for little overhead. A source adds up to 64 KiB, as lines with prefixes, after this is
  // reached.
  static constexpr int64_t kFrameBytes = 128 * 1024;

  const int stream_;
  Channel* const channel_;
  std::string buffer_;
  int64_t credit_ = kWindowBytes;
  bool broken_ = false;
};

}  // namespace annulus
