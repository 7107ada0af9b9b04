// The launcher's own streams, when their reader is slow, gone, or when they cannot be written. A write that blocked
// would block the test until its time is over.
#include "launcher/job/sink.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

namespace annulus {
namespace {

constexpr int kRounds = 10'000;

class SinkTest : public testing::Test {
 protected:
  SinkTest() { signal(SIGPIPE, SIG_IGN); }  // As annulus-run does.
  ~SinkTest() override {
    CloseReader();
    close(writer_);
  }
  void MakePipe() {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_ = ends[0];
    writer_ = ends[1];
  }
  void MakeTerminal() {
    reader_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ASSERT_TRUE(reader_ >= 0 && grantpt(reader_) == 0 && unlockpt(reader_) == 0);
    writer_ = open(ptsname(reader_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    ASSERT_GE(writer_, 0);
  }
  void CloseReader() {
    if (reader_ >= 0) close(reader_);
    reader_ = -1;
  }
  // Writes until the reader has to read first.
  static void WriteAll(Sink* sink) {
    for (int round = 0; round < kRounds; ++round) {
      pollfd polled = sink->Polled();
      if (poll(&polled, 1, 0) <= 0) return;
      sink->OnPolled(polled.revents);
    }
  }
  std::string Read() const {
    std::string text;
    pollfd polled{reader_, POLLIN, 0};
    std::array<char, 4096> bytes;
    while (poll(&polled, 1, 0) > 0) {
      const ssize_t got = read(reader_, bytes.data(), bytes.size());
      if (got <= 0) break;
      text.append(bytes.data(), static_cast<size_t>(got));
    }
    return text;
  }

  int reader_ = -1;
  int writer_ = -1;
};

TEST_F(SinkTest, ATerminalThatDoesNotReadBlocksNobody) {
  MakeTerminal();
  Sink sink(writer_);
  std::string sent;
  for (int line = 0; line < 20'000; ++line) sent += std::to_string(line) + "\n";
  sink.AddBytes(sent);
  WriteAll(&sink);
  ASSERT_FALSE(sink.empty()) << "the terminal has taken everything";
  EXPECT_EQ(fcntl(writer_, F_GETFL) & O_NONBLOCK, 0) << "the shell's own file has changed";
  sink.OnPolled(POLLOUT);  // As the kernel says with room for a single byte.
  std::string got;
  for (const Deadline deadline = DeadlineAfter(20 * kSecond); Now() < deadline && got.size() < sent.size();) {
    for (const char c : Read()) {
      if (c != '\r') got += c;
    }
    WriteAll(&sink);
  }
  EXPECT_TRUE(got == sent) << got.size() << " of " << sent.size();
  EXPECT_EQ(sink.error(), 0);
}

TEST_F(SinkTest, ATerminalThatRefusesAgainAndAgainIsAskedLater) {
  MakeTerminal();
  Sink sink(writer_);
  sink.AddBytes(std::string(500'000, 'x'));
  // The kernel passes on what it has while this runs, and so has room again.
  for (const Deadline deadline = DeadlineAfter(20 * kSecond); Now() < deadline && sink.retry() == kNoDeadline;) {
    WriteAll(&sink);
    for (int i = 0; i < 2; ++i) sink.OnPolled(POLLOUT);
  }
  const Deadline retry = sink.retry();
  ASSERT_LT(retry, kNoDeadline);
  const int events = sink.Polled().events;
  EXPECT_TRUE(events == 0 || Now() >= retry);
  while (Now() < retry) poll(nullptr, 0, 1);
  EXPECT_EQ(sink.Polled().events, POLLOUT);
}

TEST_F(SinkTest, TheFarEndOfATerminalIsNotTakenForANewOne) {
  MakeTerminal();
  Sink sink(reader_);
  sink.AddBytes("typed\n");
  WriteAll(&sink);
  std::array<char, 16> bytes;
  pollfd polled{writer_, POLLIN, 0};
  ASSERT_EQ(poll(&polled, 1, 10'000), 1);
  EXPECT_EQ(std::string(bytes.data(), read(writer_, bytes.data(), bytes.size())), "typed\n");
}

// As of 2>&1: poll says of both that they may write, and the first takes the room of the second.
void ExpectNeitherBlocks(Sink* out, Sink* err) {
  for (Sink* sink : {out, err}) sink->AddBytes(std::string(200'000, 'x'));
  for (int round = 0; round < kRounds; ++round) {
    std::array<pollfd, 2> polled{out->Polled(), err->Polled()};
    if (poll(polled.data(), polled.size(), 0) <= 0) break;
    out->OnPolled(polled[0].revents);
    err->OnPolled(polled[1].revents);
    err->OnPolled(POLLOUT);
  }
  EXPECT_FALSE(out->empty());
  EXPECT_FALSE(err->empty());
}

TEST_F(SinkTest, TwoStreamsThatShareAPipeDoNotBlock) {
  MakePipe();
  Sink out(writer_);
  Sink err(writer_);
  ExpectNeitherBlocks(&out, &err);
  size_t got = 0;
  for (const Deadline deadline = DeadlineAfter(20 * kSecond); Now() < deadline && got < 400'000;) {
    got += Read().size();
    WriteAll(&out);
    WriteAll(&err);
  }
  EXPECT_EQ(got, 400'000u);
}

// After su, the pipe belongs to another user and cannot be opened.
TEST_F(SinkTest, NorDoTheyWhereThePipeBelongsToAnother) {
  constexpr uid_t kAnother = 12345;
  const uid_t own = geteuid();
  MakePipe();
  if (own != 0 || seteuid(kAnother) != 0) GTEST_SKIP() << "no other user here";
  Sink out(writer_);
  Sink err(writer_);
  ASSERT_EQ(seteuid(own), 0);
  EXPECT_EQ(out.Polled().fd, writer_);
  ExpectNeitherBlocks(&out, &err);
}

TEST_F(SinkTest, AReaderThatLeavesIsNoError) {
  MakePipe();
  Sink sink(writer_);
  CloseReader();
  sink.AddBytes("to nobody\n");
  sink.OnPolled(POLLOUT);
  EXPECT_TRUE(sink.broken());
  EXPECT_TRUE(sink.empty());
  EXPECT_EQ(sink.error(), 0);
}

TEST_F(SinkTest, AFullDiskIsAnErrorAndNoReaderThatLeft) {
  writer_ = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(writer_, 0);
  Sink sink(writer_);
  sink.AddBytes("result\n");
  WriteAll(&sink);
  EXPECT_EQ(sink.error(), ENOSPC);
  EXPECT_FALSE(sink.broken());
  EXPECT_TRUE(sink.empty());
}

}  // namespace
}  // namespace annulus
