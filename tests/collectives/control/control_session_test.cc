// Control sessions over real sockets that are reset again and again: every message arrives once and in order.
#include "collectives/control/control_session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/bytes.h"
#include "collectives/control/sockets/socket_net.h"
#include "tests/collectives/control/control_pairs.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

// Two sessions in one thread, each of which sends numbers and checks those that it gets.
class Pair {
 public:
  Pair() {
    for (int side = 0; side < 2; ++side) {
      sessions_[side] = std::make_unique<ControlSession>(
          &net_, ControlSession::Handlers{[this, side](MessageType type, std::span<const std::byte> body) {
                                            EXPECT_EQ(type, MessageType::kReport);
                                            EXPECT_EQ(ByteReader(body).U64(), received_[side]++);
                                          },
                                          [this, side](ControlEnd end, const Status&) { ends_[side].push_back(end); }});
    }
    const auto [left, right] = ConnectPair();
    KeepCopies(left, right);
    EXPECT_TRUE(sessions_[0]->Open(left).ok() && sessions_[1]->Open(right).ok());
  }

  ~Pair() {
    for (const int fd : fds_) {
      if (fd >= 0) ::close(fd);
    }
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  void Send(int side) {
    ByteWriter out;
    out.U64(sent_[side]++);
    sessions_[side]->Send(MessageType::kReport, out.bytes());
  }

  // Lets at most `most` handlers run.
  void Run(int most) {
    context_.restart();
    while (most-- > 0 && context_.poll_one() > 0) {
    }
  }

  // Breaks the connection as something between the two might, wherever its bytes are.
  void Reset() {
    for (int& fd : fds_) {
      sockaddr nothing{};
      nothing.sa_family = AF_UNSPEC;
      ::connect(fd, &nothing, sizeof nothing);
      ::close(std::exchange(fd, -1));
    }
  }

  void Resume() {
    const auto [left, right] = ConnectPair();
    KeepCopies(left, right);
    EXPECT_TRUE(sessions_[0]->Resume(left).ok() && sessions_[1]->Resume(right).ok());
  }

  void ExpectAllArrives() {
    for (int turn = 0; turn < 100'000 && (received_[0] < sent_[1] || received_[1] < sent_[0]); ++turn) Run(100);
    EXPECT_EQ(received_[0], sent_[1]);
    EXPECT_EQ(received_[1], sent_[0]);
  }

  ControlSession& session(int side) { return *sessions_[side]; }
  const std::vector<ControlEnd>& ends(int side) const { return ends_[side]; }

 private:
  // Keeps descriptors of its own for both ends, by which to break them.
  void KeepCopies(int left, int right) {
    fds_[0] = ::dup(left);
    fds_[1] = ::dup(right);
  }

  asio::io_context context_;
  SocketNet net_{&context_, "", {}};
  std::unique_ptr<ControlSession> sessions_[2];
  int fds_[2] = {-1, -1};
  uint64_t sent_[2] = {0, 0};
  uint64_t received_[2] = {0, 0};
  std::vector<ControlEnd> ends_[2];
};

TEST(ControlSessionTest, MessagesArriveOnceAndInOrderWhereverTheConnectionIsReset) {
  constexpr int kMessages = 40;  // More than two confirmations.
  for (int cut = 0; cut <= 2 * kMessages; ++cut) {
    for (const int handlers : {0, 1, 3, 1000}) {
      SCOPED_TRACE(testing::Message() << "reset after message " << cut << " and " << handlers << " handlers");
      Pair pair;
      for (int message = 0; message < 2 * kMessages; ++message) {
        if (message == cut) {
          pair.Run(handlers);
          pair.Reset();
        }
        pair.Send(message % 2);
        if (message % 5 == 0) pair.Run(4);
      }
      if (cut == 2 * kMessages) pair.Reset();
      pair.Run(1000);
      pair.Resume();
      pair.ExpectAllArrives();
      if (HasFailure()) return;
    }
  }
}

TEST(ControlSessionTest, MessagesArriveOnceAndInOrderHoweverOftenItIsReset) {
  const uint64_t rounds = Rounds(100, 20'000);
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    Pair pair;
    for (int step = 0; step < 200; ++step) {
      const uint64_t what = random() % 10;
      if (what < 6) pair.Send(static_cast<int>(random() % 2));
      if (what >= 6 && what < 9) pair.Run(static_cast<int>(random() % 8));
      if (what == 9) {
        pair.Reset();
        pair.Run(static_cast<int>(random() % 5));
        if (random() % 2 == 0) pair.Send(static_cast<int>(random() % 2));
        pair.Resume();  // Perhaps before either side has noticed.
      }
    }
    pair.ExpectAllArrives();
    if (HasFailure()) return;
  }
}

TEST(ControlSessionTest, TheEndOfASessionSaysHowItCame) {
  Pair reset;
  reset.Reset();
  reset.Run(100);
  EXPECT_EQ(reset.ends(0), std::vector{ControlEnd::kReset});
  EXPECT_EQ(reset.ends(1), std::vector{ControlEnd::kReset});
  Pair finished;
  finished.Send(0);
  finished.session(0).Finish();
  finished.ExpectAllArrives();
  finished.Run(100);
  EXPECT_EQ(finished.ends(1), std::vector{ControlEnd::kOrderly});
}

TEST(ControlSessionTest, AFinishThatWasCutOffIsMadeUpFor) {
  Pair pair;
  pair.Reset();
  pair.Run(100);
  pair.Send(0);
  pair.session(0).Finish();
  pair.Send(0);  // Ignored, but counted by the test.
  EXPECT_FALSE(pair.session(0).open());
  pair.Resume();
  for (int turn = 0; turn < 100'000 && pair.ends(1).size() < 2; ++turn) pair.Run(10);
  EXPECT_EQ(pair.ends(1), (std::vector{ControlEnd::kReset, ControlEnd::kOrderly}));
}

TEST(ControlSessionTest, AConnectionThatEndsBeforeThePeerResumesIsNoEnd) {
  asio::io_context context;
  SocketNet net(&context, "", {});
  std::vector<ControlEnd> ends;
  ControlSession session(&net, {[](MessageType, std::span<const std::byte>) {},
                                [&ends](ControlEnd end, const Status&) { ends.push_back(end); }});
  const auto [first, first_peer] = ConnectPair();
  const auto [second, second_peer] = ConnectPair();
  ASSERT_TRUE(session.Open(first).ok() && session.Resume(second).ok());
  ::shutdown(second_peer, SHUT_WR);
  for (int turn = 0; turn < 100'000 && ends.empty(); ++turn) context.poll_one();
  EXPECT_EQ(ends, std::vector{ControlEnd::kReset});
  ::close(first_peer);
  ::close(second_peer);
}

// A peer that says what cannot be.
class RawPeer : public testing::TestWithParam<std::string> {};

TEST_P(RawPeer, BreaksTheProtocolAndIsStillTold) {
  asio::io_context context;
  SocketNet net(&context, "", {});
  std::vector<ControlEnd> ends;
  ControlSession session(&net, {[](MessageType, std::span<const std::byte>) { ADD_FAILURE() << "a message"; },
                                [&ends](ControlEnd end, const Status&) { ends.push_back(end); }});
  auto [own, peer] = ConnectPair();
  ASSERT_TRUE(session.Open(own).ok());
  session.Send(MessageType::kQuery, "");
  const std::string bytes = GetParam();
  ASSERT_EQ(::write(peer, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  for (int turn = 0; turn < 100'000 && ends.empty(); ++turn) context.poll_one();
  EXPECT_EQ(ends, std::vector{ControlEnd::kProtocol});
  EXPECT_TRUE(session.open());
  // What else it says is ignored, however much: it must not be reset before it has read the verdict.
  const std::string more = bytes + *EncodeMessage(MessageType::kReport, "more") + std::string(10'000, 'x');
  ASSERT_EQ(::write(peer, more.data(), more.size()), static_cast<ssize_t>(more.size()));
  const EncodedMessage verdict = EncodeMessage(MessageType::kVerdict, "the verdict");
  session.Send(MessageType::kVerdict, "the verdict");
  session.Finish();
  const std::string told = *EncodeMessage(MessageType::kQuery, "") + *verdict;
  std::string heard(told.size(), '\0');
  ASSERT_EQ(::recv(peer, heard.data(), heard.size(), MSG_WAITALL), static_cast<ssize_t>(heard.size()));
  EXPECT_EQ(heard, told);
  ::shutdown(peer, SHUT_WR);
  for (int turn = 0; turn < 100'000 && ends.size() < 2; ++turn) context.poll_one();
  EXPECT_EQ(ends, (std::vector{ControlEnd::kProtocol, ControlEnd::kProtocol}));
  EXPECT_FALSE(session.open());
  char more_bytes = 0;
  EXPECT_EQ(::read(peer, &more_bytes, 1), 0) << "an orderly end";
  ::close(peer);
}

std::string Message(MessageType type, uint64_t count, int more = 0) {
  ByteWriter out;
  out.U64(count);
  return *EncodeMessage(type, out.bytes() + std::string(more, 'x'));
}

INSTANTIATE_TEST_SUITE_P(Messages, RawPeer,
                         testing::Values(Message(MessageType::kReceived, 2), Message(MessageType::kReceived, 0, 1),
                                         Message(MessageType::kReceived, ~uint64_t{0}), std::string(5, '\0'),
                                         std::string(5, '\x7f'), Message(MessageType::kResume, 0)));

}  // namespace
}  // namespace annulus
