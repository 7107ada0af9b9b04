// Who gets through a door: other users do not, and whoever has spoken is not crowded out by those who are silent.
#include "transport/security/door.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio/local/stream_protocol.hpp>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "transport/security/connector.h"

namespace annulus {
namespace {

constexpr char kKey[] = "the key of these doors";
constexpr Nanoseconds kPatience = 20 * kSecond;  // Only a failing test takes that long.
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

  int Dial() {
    const StreamEndpoint to = listener_.local_endpoint();
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
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setuid(kNobody) != 0) _exit(2);
    const int fd = Dial();
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
  RunUntil([&] { return recv(crowd[100], &byte, 1, MSG_DONTWAIT) == 0; });
  EXPECT_EQ(recv(oldest, &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_GT(send(oldest, hello.data() + 20, hello.size() - 20, 0), 0);
  RunUntil([&] { return recv(oldest, &byte, 1, MSG_DONTWAIT) == 1; });  // The answer to its hello.
  for (const int fd : crowd) close(fd);
  close(oldest);
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
