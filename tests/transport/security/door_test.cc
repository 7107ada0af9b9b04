// Who gets through a door: other users do not, and whoever has spoken is not crowded out by those who are silent.
#include "transport/security/door.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <asio/local/stream_protocol.hpp>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "transport/security/connector.h"

namespace annulus {
namespace {

constexpr char kKey[] = "the key of these doors";
constexpr Nanoseconds kPatience = 60 * kSecond;  // Only a failing test takes that long.
constexpr uid_t kNobody = 65534;

class DoorTest : public testing::Test {
 protected:
  void Open(const StreamEndpoint& at) {
    ASSERT_TRUE(Listen(&reactor_, at, nullptr, &listener_).ok());
    OpenHere();
  }
  void OpenHere() {
    Door::Plan plan;
    plan.hello = {.purpose = kRendezvousPurpose, .nranks = 2, .rank = 0};
    plan.key = kKey;
    plan.expected = 1;
    plan.limit = kPatience;
    plan.decide = [](const Hello&) { return StreamHandshake::Verdict::kWelcome; };
    plan.on_proven = [this](const Door::Proven& proven) { proven_ = proven.handshake; };
    door_ = std::make_shared<Door>(&reactor_.context(), std::move(plan));
    door_->Open(&listener_);
  }
  void TearDown() override { door_->Close(); }

  int Dial() { return DialTo(listener_.local_endpoint()); }
  static int DialTo(const StreamEndpoint& to) {
    const int fd = socket(to.data()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, to.data(), static_cast<socklen_t>(to.size())), 0);
    return fd;
  }
  template <class Condition>
  void RunUntil(Condition condition) {
    const Deadline limit = DeadlineAfter(kPatience);
    while (!condition() && Now() < limit) reactor_.WaitUntil(Now() + 10 * kMillisecond);
    EXPECT_TRUE(condition());
  }

  Reactor reactor_;
  StreamListener listener_{reactor_.context()};
  std::shared_ptr<Door> door_;
  std::shared_ptr<StreamHandshake> proven_;
};

TEST_F(DoorTest, ProcessesOfOtherUsersAreDroppedUnheard) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can try another user";
  Open(asio::local::stream_protocol::endpoint(""));
  const StreamEndpoint to = listener_.local_endpoint();  // A forked child has no listener.
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setuid(kNobody) != 0) _exit(2);
    const int fd = DialTo(to);
    char byte;
    _exit(recv(fd, &byte, 1, 0) <= 0 ? 0 : 1);
  }
  int status = 0;
  const Deadline limit = DeadlineAfter(kPatience);
  while (waitpid(stranger, &status, WNOHANG) == 0 && Now() < limit) reactor_.WaitUntil(Now() + 10 * kMillisecond);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) GTEST_SKIP() << "there is no other user in this sandbox";
  EXPECT_EQ(door_->last_dropped(),
            "process " + std::to_string(stranger) + " of user 65534: only processes of user 0 may connect");
  EXPECT_EQ(status, 0);
}

TEST_F(DoorTest, WhoHasSpokenIsNotCrowdedOutBySilentOnes) {
  StreamEndpoint at;
  ASSERT_TRUE(MakeEndpoint("127.0.0.1", 0, &at).ok());
  Open(at);
  Handshake rank(Handshake::Role::kInitiator, kKey, {.purpose = kRendezvousPurpose, .nranks = 2, .rank = 1});
  const auto hello = rank.Output();
  const int oldest = Dial();
  ASSERT_EQ(send(oldest, hello.data(), 20, 0), 20);
  for (int i = 0; i < 5; ++i) reactor_.WaitUntil(Now() + 10 * kMillisecond);  // It is accepted and read.
  std::vector<int> crowd;
  for (int i = 0; i < 200; ++i) crowd.push_back(Dial());
  char byte;
  RunUntil([&] {
    const auto is_dropped = [&byte](int fd) { return recv(fd, &byte, 1, MSG_DONTWAIT) == 0; };
    return std::ranges::count_if(crowd, is_dropped) >= 100;
  });
  EXPECT_EQ(recv(oldest, &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_GT(send(oldest, hello.data() + 20, hello.size() - 20, 0), 0);
  RunUntil([&] { return recv(oldest, &byte, 1, MSG_DONTWAIT) == 1; });  // The answer to its hello.
  for (const int fd : crowd) close(fd);
  close(oldest);
}

// Those that have said a byte do not crowd out a rank that is accepted in the same turn as others, and whose hello was
// therefore not read yet.
TEST_F(DoorTest, WhoWasJustAcceptedIsNotCrowdedOutByThoseWhoSpoke) {
  StreamEndpoint at;
  ASSERT_TRUE(MakeEndpoint("127.0.0.1", 0, &at).ok());
  Open(at);
  std::vector<int> crowd;
  for (int i = 0; i < 65; ++i) {
    crowd.push_back(Dial());
    ASSERT_EQ(send(crowd.back(), "A", 1, 0), 1);
    reactor_.WaitUntil(Now() + kMillisecond);
  }
  for (int i = 0; i < 5; ++i) reactor_.WaitUntil(Now() + 10 * kMillisecond);
  Handshake rank(Handshake::Role::kInitiator, kKey, {.purpose = kRendezvousPurpose, .nranks = 2, .rank = 1});
  const auto hello = rank.Output();
  const int own = Dial();
  ASSERT_GT(send(own, hello.data(), hello.size(), 0), 0);
  for (int i = 0; i < 8; ++i) crowd.push_back(Dial());
  char byte;
  RunUntil([&] { return recv(own, &byte, 1, MSG_DONTWAIT) == 1; });  // The answer to its hello.
  for (const int fd : crowd) close(fd);
  close(own);
}

// A crowd that speaks, as large as the door holds, is renewed as fast as a stranger can. A rank gets in.
TEST_F(DoorTest, ARankGetsInBesideACrowdThatSpeaks) {
  StreamEndpoint at;
  ASSERT_TRUE(MakeEndpoint("127.0.0.1", 0, &at).ok());
  Open(at);
  at = listener_.local_endpoint();
  std::atomic<bool> over = false;
  std::jthread stranger([&] {
    Handshake greeting(Handshake::Role::kInitiator, "not the key",
                       {.purpose = kRendezvousPurpose, .nranks = 2, .rank = 1});
    const auto hello = greeting.Output();
    std::deque<int> held;
    for (size_t i = 0; !over; ++i) {
      held.push_back(socket(at.data()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      // Some say a byte, others a whole hello, and no more.
      if (connect(held.back(), at.data(), static_cast<socklen_t>(at.size())) == 0) [[maybe_unused]]
        const ssize_t sent = send(held.back(), hello.data(), i % 2 == 0 ? 1 : hello.size(), MSG_NOSIGNAL);
      if (held.size() <= 200) continue;
      close(held.front());
      held.pop_front();
    }
    for (const int fd : held) close(fd);
  });
  RunUntil([this] { return !door_->last_dropped().empty(); });
  Status status;
  const Nanoseconds start = Now();
  std::jthread rank([&] {
    Reactor reactor;
    ConnectPlan plan;
    plan.hello = {.purpose = kRendezvousPurpose, .nranks = 2, .rank = 1};
    plan.key = kKey;
    plan.dials = {{{0, 0, 0}, {at}}};
    plan.deadline = DeadlineAfter(kPatience);
    std::vector<Stream> streams;
    status = EstablishStreams(&reactor, plan, &streams);
  });
  RunUntil([this] { return proven_ != nullptr; });
  std::printf("proven after %.3f s\n", static_cast<double>(Now() - start) / kSecond);
  rank.join();
  over = true;
  EXPECT_TRUE(status.ok()) << status.ToString();
}

// As under a filter of system calls that forbids accept.
TEST_F(DoorTest, WhereAcceptAlwaysFailsItIsTriedNowAndThen) {
  listener_.open(StreamProtocol(AF_INET, IPPROTO_TCP));  // Never listens: it can be read, and accept fails.
  OpenHere();
  size_t handlers = 0;
  const Deadline limit = Now() + 200 * kMillisecond;
  while (Now() < limit) handlers += reactor_.context().run_one_for(std::chrono::nanoseconds(limit - Now()));
  EXPECT_GT(handlers, 0u);
  EXPECT_LT(handlers, 50u);  // It would be thousands.
}

// Rank 0 may accept long after the launcher has begun to listen for it. Dials that came meanwhile are still there,
// once.
TEST_F(DoorTest, DialThatIsConnectedWaitsForItsAnswerBeyondTheDialLimit) {
  StreamEndpoint at;
  ASSERT_TRUE(MakeEndpoint("127.0.0.1", 0, &at).ok());
  ASSERT_TRUE(Listen(&reactor_, at, nullptr, &listener_).ok());
  at = listener_.local_endpoint();
  Status status;
  std::jthread rank([&] {
    Reactor reactor;
    ConnectPlan plan;
    plan.hello = {.purpose = kRendezvousPurpose, .nranks = 2, .rank = 1};
    plan.key = kKey;
    plan.dial_limit = 10 * kMillisecond;
    plan.dials = {{{0, 0, 0}, {at}}};
    plan.deadline = DeadlineAfter(kPatience);
    std::vector<Stream> streams;
    status = EstablishStreams(&reactor, plan, &streams);
  });
  const Deadline late = Now() + 200 * kMillisecond;
  while (Now() < late) reactor_.WaitUntil(late);
  OpenHere();
  RunUntil([this] { return proven_ != nullptr; });
  rank.join();
  EXPECT_EQ(door_->last_dropped(), "");
  EXPECT_TRUE(status.ok()) << status.ToString();
}

}  // namespace
}  // namespace annulus
