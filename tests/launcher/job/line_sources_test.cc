// Streams that together have more to say than their target takes.
#include "launcher/job/line_sources.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace annulus {
namespace {

// Takes a limited number of bytes.
class NarrowTarget : public LineTarget {
 public:
  explicit NarrowTarget(size_t room) : room_(room) {}

  bool full() const override { return text_.size() >= room_; }
  bool broken() const override { return false; }
  void AddBytes(std::string_view bytes) override { text_.append(bytes); }
  std::string Take() { return std::exchange(text_, ""); }

 private:
  const size_t room_;
  std::string text_;
};

class LineSourcesTest : public testing::Test {
 protected:
  ~LineSourcesTest() override {
    for (const int writer : writers_) close(writer);
  }
  void Add(LineTarget* target) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    sources_.Add(ends[0], target, "[" + std::to_string(writers_.size()) + "] ");
    writers_.push_back(ends[1]);
  }
  void Write(size_t index, const std::string& text) {
    ASSERT_EQ(write(writers_[index], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void ReadReady() {
    std::vector<pollfd> polled;
    sources_.AddPolled(&polled);
    ASSERT_GE(poll(polled.data(), polled.size(), 0), 0);
    sources_.OnPolled(polled.data());
  }

  LineSources sources_;
  std::vector<int> writers_;
};

TEST_F(LineSourcesTest, ATargetThatBecomesFullIsLeftAlone) {
  NarrowTarget target(1);
  for (int i = 0; i < 3; ++i) Add(&target);
  for (int i = 0; i < 3; ++i) Write(i, "a line\n");
  ReadReady();
  EXPECT_EQ(target.Take(), "[0] a line\n");
}

TEST_F(LineSourcesTest, AFullTargetDoesNotStopTheStreamsOfAnother) {
  NarrowTarget narrow(1);
  NarrowTarget wide(1000);
  for (int i = 0; i < 4; ++i) Add(i % 2 == 0 ? &narrow : &wide);
  for (int i = 0; i < 4; ++i) Write(i, "x\n");
  ReadReady();
  EXPECT_EQ(narrow.Take(), "[0] x\n");
  EXPECT_EQ(wide.Take(), "[1] x\n[3] x\n");
}

TEST_F(LineSourcesTest, StreamsThatAlwaysHaveMoreTakeTurns) {
  constexpr size_t kStreams = 5;
  NarrowTarget target(1);
  for (size_t i = 0; i < kStreams; ++i) Add(&target);
  std::set<std::string> heard;
  for (size_t round = 0; round < kStreams; ++round) {
    for (size_t i = 0; i < kStreams; ++i) Write(i, "more\n");
    ReadReady();
    heard.insert(target.Take().substr(0, 3));
  }
  EXPECT_EQ(heard.size(), kStreams);
}

}  // namespace
}  // namespace annulus
