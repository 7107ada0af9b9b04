// Strangers at the door of EstablishStreams: they are dropped, and keep no rank out.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/transport/security/connector_rank.h"

namespace annulus {
namespace {

int CountOf(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(ConnectorStrangersTest, StrangersAreDroppedAndDelayNobody) {
  ConnectorRank acceptor(0);
  acceptor.plan.stranger_limit = kPatience;  // Whoever were waited for would show.
  ConnectorRank dialler(1);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  Stranger silent(at);
  Stranger web(at);
  web.Say("GET / HTTP/1.1\r\n" + std::string(100, 'x'));
  { Stranger scan(at); }
  Stranger half(at);
  half.Say("ANNULUS\n");
  testing::internal::CaptureStderr();
  acceptor.Start();
  EXPECT_TRUE(web.IsDropped());
  dialler.Dial(0, at);
  dialler.Connect();
  acceptor.Join();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(acceptor.status.ok()) << acceptor.status.ToString();
  EXPECT_TRUE(dialler.status.ok()) << dialler.status.ToString();
  EXPECT_TRUE(silent.IsDropped());
  EXPECT_TRUE(half.IsDropped());
  EXPECT_EQ(CountOf(log, "no valid hello"), 1) << log;
}

TEST(ConnectorStrangersTest, ASlowStrangerIsDroppedWhileOthersAreAwaited) {
  ConnectorRank acceptor(0);
  acceptor.plan.stranger_limit = 30 * kMillisecond;
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  acceptor.Start();
  Stranger silent(at);
  EXPECT_TRUE(silent.IsDropped());
  ConnectorRank dialler(1);
  dialler.Dial(0, at);
  dialler.Connect();
  acceptor.Join();
  EXPECT_TRUE(acceptor.status.ok() && dialler.status.ok()) << dialler.status.ToString();
}

TEST(ConnectorStrangersTest, ACrowdOfSilentStrangersDoesNotKeepARankOut) {
  ConnectorRank acceptor(0);
  acceptor.plan.stranger_limit = kPatience;
  ConnectorRank dialler(1);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  std::vector<std::unique_ptr<Stranger>> crowd;
  for (int i = 0; i < 200; ++i) crowd.push_back(std::make_unique<Stranger>(at));
  acceptor.Start();
  dialler.Dial(0, at);
  dialler.Connect();
  acceptor.Join();
  EXPECT_TRUE(acceptor.status.ok() && dialler.status.ok()) << dialler.status.ToString();
}

TEST(ConnectorStrangersTest, ManyStrangersOfAKindAreLoggedOnceAndCounted) {
  ConnectorRank acceptor(0);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  testing::internal::CaptureStderr();
  acceptor.Start();
  for (int i = 0; i < 5; ++i) {
    Stranger noise(at);
    noise.Say(std::string(80, 'x'));
    EXPECT_TRUE(noise.IsDropped());
  }
  ConnectorRank dialler(1);
  dialler.Dial(0, at);
  dialler.Connect();
  acceptor.Join();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(CountOf(log, "dropped a connection"), 1) << log;
  EXPECT_EQ(CountOf(log, "dropped 5 connections while connecting: 5 no valid hello"), 1) << log;
}

TEST(ConnectorStrangersTest, AnotherKeyIsAStrangerToTheAcceptorAndAnErrorToTheDialler) {
  ConnectorRank acceptor(0);
  const StreamEndpoint at = acceptor.ListenOn("127.0.0.1");
  acceptor.Expect(1);
  testing::internal::CaptureStderr();
  { Stranger scan(at); }  // Hides nothing: it is a stranger of another kind.
  acceptor.Start();
  ConnectorRank wrong(1, 2, "some other key");
  wrong.Dial(0, at);
  wrong.Connect();
  EXPECT_EQ(wrong.status.code(), Code::kAuth) << wrong.status.ToString();
  EXPECT_EQ(wrong.status.peer(), 0);
  ConnectorRank right(1);
  right.Dial(0, at);
  right.Connect();
  acceptor.Join();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(CountOf(log, "(left early)") * CountOf(log, "(left without proof)"), 1) << log;
  EXPECT_TRUE(acceptor.status.ok() && right.status.ok()) << right.status.ToString();
}

}  // namespace
}  // namespace annulus
