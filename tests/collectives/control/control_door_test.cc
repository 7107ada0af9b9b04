// The door through which a rank comes back: who is let in, and that nobody keeps others out.
#include "collectives/control/sockets/control_door.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <optional>
#include <vector>

#include "collectives/control/sockets/control_dial.h"
#include "tests/base/descriptor_limit.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 20 * kSecond;  // Only a failing test waits that long.
constexpr Purpose kPurpose = {4, "control"};

Hello HelloOf(uint32_t rank, uint64_t job = 7) {
  Hello hello;
  hello.purpose = kPurpose;
  hello.identity.job = job;
  hello.nranks = 4;
  hello.rank = rank;
  return hello;
}

class ControlDoorTest : public testing::Test {
 protected:
  ControlDoorTest()
      : door_(
            &context_, "the key", HelloOf(0), [](int rank) { return rank != 3; },
            [this](int rank, const SealedFd& connection) {
              returned_.push_back(rank);
              ::close(connection.fd);
            }) {
    int listener = -1;
    int port = 0;
    EXPECT_TRUE(ListenForReturns("127.0.0.1", &listener, &port).ok());
    EXPECT_TRUE(door_.Open(listener).ok());
    EXPECT_TRUE(MakeEndpoint("127.0.0.1", port, &address_).ok());
  }
  ~ControlDoorTest() override {
    for (const int fd : strangers_) ::close(fd);
  }

  // A rank's attempt to come back. `meanwhile` runs when it has its socket.
  Status Dial(
      const std::string& key, const Hello& hello, const std::function<void()>& meanwhile = [] {},
      Nanoseconds limit = 5 * kSecond) {
    const auto dial = std::make_shared<ControlDial>(&context_, key, hello);
    Status result = Status::WouldBlock();
    dial->Start(address_, limit, [&result](const Status& status, const SealedFd& connection) {
      result = status;
      if (connection.fd >= 0) ::close(connection.fd);
    });
    meanwhile();
    const Deadline deadline = DeadlineAfter(kPatience);
    while (result.would_block() && Now() < deadline) context_.run_one_for(std::chrono::milliseconds(10));
    context_.poll();
    return result;
  }

  // Somebody who connects and says `words`.
  int Stranger(const std::string& words) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(fd, address_.data(), static_cast<socklen_t>(address_.size())), 0);
    EXPECT_EQ(::send(fd, words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
    strangers_.push_back(fd);
    return fd;
  }

  bool IsDropped(int fd) {
    char byte = 0;
    const Deadline deadline = DeadlineAfter(kPatience);
    while (Now() < deadline) {
      context_.run_one_for(std::chrono::milliseconds(10));
      const ssize_t got = ::recv(fd, &byte, 1, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
    }
    return false;
  }

  asio::io_context context_;
  std::vector<int> returned_;
  ControlDoor door_;
  StreamEndpoint address_;
  std::vector<int> strangers_;
};

TEST_F(ControlDoorTest, ARankWithTheKeyComesBack) {
  EXPECT_TRUE(Dial("the key", HelloOf(2)).ok());
  EXPECT_TRUE(Dial("the key", HelloOf(2)).ok()) << "again";
  EXPECT_EQ(returned_, (std::vector{2, 2}));
}

// The kernel of a stopped process accepts connections.
TEST_F(ControlDoorTest, WhoIsAcceptedAndNotAnsweredIsToldSo) {
  int listener = -1;
  int port = 0;
  ASSERT_TRUE(ListenForReturns("127.0.0.1", &listener, &port).ok());
  ASSERT_TRUE(MakeEndpoint("127.0.0.1", port, &address_).ok());
  const Status status = Dial(
      "the key", HelloOf(2), [] {}, 300 * kMillisecond);
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_EQ(status.os_errno(), 0);
  ::close(listener);
}

TEST_F(ControlDoorTest, OthersDoNot) {
  Hello of_another_run = HelloOf(2);
  of_another_run.identity.run = {"B", 1};
  EXPECT_EQ(Dial("another key", HelloOf(2)).code(), Code::kAuth);
  EXPECT_EQ(Dial("the key", HelloOf(2, 8)).code(), Code::kProtocol) << "another job";
  EXPECT_EQ(Dial("the key", of_another_run).code(), Code::kMismatch) << "another run";
  EXPECT_EQ(Dial("the key", HelloOf(3)).code(), Code::kProtocol) << "a rank that has left";
  EXPECT_FALSE(Dial("the key", HelloOf(4)).ok()) << "no rank of this job";
  EXPECT_TRUE(returned_.empty());
}

TEST_F(ControlDoorTest, StrangersAreDroppedAndKeepNobodyOut) {
  const int garbage = Stranger(std::string(1000, 'x'));
  const int silent = Stranger("");
  for (int i = 0; i < 40; ++i) Stranger("");  // More than are listened to.
  EXPECT_TRUE(Dial("the key", HelloOf(1)).ok());
  EXPECT_EQ(returned_, std::vector{1});
  EXPECT_TRUE(IsDropped(garbage));
  EXPECT_TRUE(IsDropped(silent));
  for (const int fd : strangers_) EXPECT_TRUE(IsDropped(fd)) << "after a while";
}

// A process whose data loaders hold all its descriptors.
TEST_F(ControlDoorTest, ARankComesBackThoughNoDescriptorIsLeft) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer of undefined behaviour needs descriptors to look at memory";
#endif
  std::vector<int> held;
  std::optional<DescriptorLimit> few;
  const auto hold_all = [&held, &few] {
    few.emplace(DescriptorLimit::Next() + 16);
    for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) held.push_back(fd);
    ASSERT_EQ(errno, EMFILE);
  };
  const Status came_back = Dial("the key", HelloOf(2), hold_all);
  for (const int fd : held) ::close(fd);
  few.reset();
  EXPECT_TRUE(came_back.ok()) << came_back.message();
  EXPECT_EQ(returned_, std::vector{2});
}

TEST_F(ControlDoorTest, AClosedDoorRefuses) {
  door_.Close();
  EXPECT_EQ(Dial("the key", HelloOf(1)).os_errno(), ECONNREFUSED);
}

}  // namespace
}  // namespace annulus
