// When a connection counts as silent, on a real one: its kernel is made to drop what comes, so that nothing is
// acknowledged.
#include "transport/tcp/socket/tcp_pulse.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>

#include "tests/transport/tcp/silence.h"
#include "tests/transport/tcp/socket_cutter.h"
#include "transport/tcp/socket/tcp_path.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 60 * kSecond;
constexpr size_t kAskBytes = 64;

void Pause(int ms) { poll(nullptr, 0, ms); }

class TcpPulseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    network_ = SocketCutter::Create(&why);  // Where this process may set filters.
    if (network_ == nullptr) GTEST_SKIP() << why;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    ASSERT_EQ(bind(listener, name, bytes), 0);
    ASSERT_EQ(listen(listener, 1), 0);
    ASSERT_EQ(getsockname(listener, name, &bytes), 0);
    own_ = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(connect(own_, name, bytes), 0);
    const int on = 1;
    ASSERT_EQ(setsockopt(own_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on), 0);
    peer_ = accept(listener, nullptr, nullptr);
    ASSERT_GE(peer_, 0);
    close(listener);
  }
  void TearDown() override {
    close(own_);
    close(peer_);
  }

  void Send() {
    const std::array<char, kAskBytes> data{};
    ASSERT_EQ(send(own_, data.data(), data.size(), MSG_NOSIGNAL), static_cast<ssize_t>(data.size()));
    carried_ += data.size();
  }
  bool IsSilent(bool awaits = false) {
    return pulse_.IsSilent({own_, awaits, carried_}, [this] {
      if (asked_ == most_) return size_t{0};
      ++asked_;
      Send();
      return kAskBytes;
    });
  }
  // Whether that became true, with looks in between or without.
  template <class Done>
  static bool Until(Done done) {
    const Deadline deadline = DeadlineAfter(kPatience);
    while (!done() && Now() < deadline) Pause(20);
    return done();
  }
  bool IsOwed() const { return PathAnswersOf(own_).owes_after.has_value(); }
  static void Compute() { Pause(700); }

  std::unique_ptr<SocketCutter> network_;
  int own_ = -1, peer_ = -1;
  uint64_t carried_ = 0;
  int asked_ = 0;
  int most_ = 1000;
  TcpPulse pulse_;
};

TEST_F(TcpPulseTest, WhatIsNotAcknowledgedForLongIsSilence) {
  ASSERT_EQ(Silence({peer_}), 1u);
  Send();
  EXPECT_FALSE(IsSilent());
  EXPECT_TRUE(Until([this] { return IsSilent(); }));
  EXPECT_EQ(asked_, 0) << "it has something to send again";
}

// The last look of a call may meet something that is still under way, and the first one of the next call too.
TEST_F(TcpPulseTest, WhatIsOwedBeforeAndAfterALongPauseIsNotTheSame) {
  for (int call = 0; call < 3; ++call) {
    ASSERT_EQ(Silence({peer_}), 1u);
    Send();
    EXPECT_TRUE(IsOwed());
    EXPECT_FALSE(IsSilent()) << call;
    EndSilence({peer_});
    ASSERT_TRUE(Until([this] { return !IsOwed(); }));
    Compute();
  }
}

TEST_F(TcpPulseTest, WhoWaitsAsksAndFindsSilence) {
  Send();
  ASSERT_TRUE(Until([this] { return !IsOwed(); }));
  ASSERT_EQ(Silence({peer_}), 1u);
  EXPECT_TRUE(Until([this] { return IsSilent(); }));
  EXPECT_EQ(asked_, 1);
}

TEST_F(TcpPulseTest, AConnectionThatIsNotUsedIsNotAsked) {
  Compute();
  EXPECT_FALSE(IsSilent());
  EXPECT_EQ(asked_, 0);
  EXPECT_FALSE(IsSilent(true));
  EXPECT_EQ(asked_, 1) << "unless something is awaited";
}

// The peer's kernel answers each time.
TEST_F(TcpPulseTest, AsksAFewTimesOnlyUntilSomethingElseIsCarried) {
  Send();
  const auto look = [this](int asked) { return !IsSilent() && asked_ == asked; };
  EXPECT_TRUE(Until([&] { return look(TcpPulse::kMostAsked); })) << asked_;
  Compute();
  EXPECT_TRUE(look(TcpPulse::kMostAsked)) << asked_;
  Send();
  EXPECT_TRUE(Until([&] { return look(TcpPulse::kMostAsked + 1); })) << asked_;
}

TEST_F(TcpPulseTest, WhereNothingCanBeSentTheKernelAsksForWhoAwaits) {
  most_ = 0;
  EXPECT_TRUE(Until([this] { return !IsSilent(true) && pulse_.asks(); }));
  ASSERT_EQ(Silence({peer_}), 1u);
  EXPECT_TRUE(Until([this] { return IsSilent(true); }));
}

}  // namespace
}  // namespace annulus
