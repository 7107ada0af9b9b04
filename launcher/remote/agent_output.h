// AgentOutput: one stream of all ranks of an agent's host, sent to annulus-run in messages of whole lines.
//
// It is full when it holds as much as it has credit for, and may then go beyond that by what one stream adds at once.
// So a slow reader at the other end slows the ranks down, and everything else on the pipe waits for little more output
// than the credit.
//
// Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "launcher/job/output.h"
#include "launcher/remote/agent_pipe.h"

namespace annulus {

// Numbers of the streams in messages.
constexpr int kOutStream = 1;
constexpr int kErrStream = 2;

class AgentOutput : public LineTarget {
 public:
  // The initial credit, and the most that is granted at once.
  static constexpr int64_t kWindowBytes = 1 << 20;

  AgentOutput(int stream, AgentPipe* pipe) : stream_(stream), pipe_(pipe) {}

  bool full() const override { return static_cast<int64_t>(buffer_.size()) >= std::min(credit_, kMessageBytes); }
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

  // Passes the gathered lines to the pipe. Call it after each round of reading. Returns whether there were any.
  bool Flush() {
    if (buffer_.empty()) return false;
    pipe_->Send(AgentMessageKind::kOutput, ByteWriter().I64(stream_).LongText(buffer_).bytes());
    credit_ -= static_cast<int64_t>(buffer_.size());
    buffer_.clear();
    return true;
  }

 private:
  // Message size: large enough for little overhead. A source adds up to 64 KiB, as lines with prefixes, after this is
  // reached.
  static constexpr int64_t kMessageBytes = 128 * 1024;

  const int stream_;
  AgentPipe* const pipe_;
  std::string buffer_;
  int64_t credit_ = kWindowBytes;
  bool broken_ = false;
};

}  // namespace annulus
