// The output of an agent's ranks, and the credit for it.
#include "launcher/remote/agent_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "launcher/job/line_sources.h"
#include "launcher/remote/agent_pipe.h"

namespace annulus {
namespace {

constexpr int64_t kPipeBytes = 65'536;

class AgentOutputTest : public testing::Test {
 protected:
  AgentOutputTest() {
    EXPECT_EQ(pipe2(up_, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(down_, O_CLOEXEC), 0);
    pipe_.emplace(AgentPipe::Side::kAgent, down_[0], up_[1]);
    output_.emplace(kOutStream, &*pipe_);
  }
  ~AgentOutputTest() override {
    close(up_[0]);
    close(down_[1]);
  }
  // Bytes that one round of reading and sending puts on the pipe.
  int64_t Round(LineSources* sources) {
    std::vector<pollfd> polled;
    sources->AddPolled(&polled);
    EXPECT_GE(poll(polled.data(), polled.size(), 0), 0);
    sources->OnPolled(polled.data());
    const size_t before = pipe_->unsent();
    output_->Flush();
    return static_cast<int64_t>(pipe_->unsent() - before);
  }

  int up_[2];
  int down_[2];
  std::optional<AgentPipe> pipe_;
  std::optional<AgentOutput> output_;
};

TEST_F(AgentOutputTest, StopsWithoutCredit) {
  int64_t sent = 0;
  while (!output_->full()) {
    output_->AddLine("[0] ", std::string(1000, 'x'));
    sent += 1005;
    output_->Flush();
  }
  EXPECT_GE(sent, AgentOutput::kWindowBytes);
  EXPECT_LT(sent, AgentOutput::kWindowBytes + 2000);
  output_->Grant(5000);
  EXPECT_FALSE(output_->full());
}

TEST_F(AgentOutputTest, IsFullWithAsMuchAsItHasCreditFor) {
  while (!output_->full()) {
    output_->AddLine("", std::string(1000, 'x'));
    output_->Flush();
  }
  output_->Grant(5000);
  for (int line = 0; line < 4; ++line) output_->AddLine("", std::string(1000, 'x'));
  EXPECT_FALSE(output_->full());
  for (int line = 0; line < 2; ++line) output_->AddLine("", std::string(1000, 'x'));
  EXPECT_TRUE(output_->full());
}

// Empty lines grow most by their prefixes.
TEST_F(AgentOutputTest, ManyFullStreamsKeepToTheCredit) {
  constexpr int kStreams = 64;
  const std::string prefix = "[63] ";
  const auto most_at_once = static_cast<int64_t>(kPipeBytes * (prefix.size() + 1));
  const std::string lines(kPipeBytes, '\n');
  LineSources sources;
  for (int i = 0; i < kStreams; ++i) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    ASSERT_EQ(write(ends[1], lines.data(), lines.size()), kPipeBytes);
    close(ends[1]);
    sources.Add(ends[0], &*output_, prefix);
  }
  int64_t sent = 0;
  while (const int64_t bytes = Round(&sources)) {
    EXPECT_LE(bytes, 128 * 1024 + most_at_once);
    sent += bytes;
  }
  EXPECT_GE(sent, AgentOutput::kWindowBytes);
  EXPECT_LE(sent, AgentOutput::kWindowBytes + most_at_once + 4096);
  while (!sources.all_closed()) {
    output_->Grant(AgentOutput::kWindowBytes);
    while (const int64_t bytes = Round(&sources)) sent += bytes;
  }
  EXPECT_GE(sent, kStreams * most_at_once) << "lines are missing";
}

}  // namespace
}  // namespace annulus
