// Thousands of connections a second at every door of a real job, from two processes. Whatever has a deadline keeps it:
// the start, a rank that never comes, a collective, the verdict on a death, a split, a control connection that is made
// again.
#include <annulus.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/faults/far_path.h"
#include "tests/faults/hosts.h"
#include "tests/faults/siege.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = Siege::kPatience;
constexpr int kRanks = 4;

// Eight ranks' start is promised within 5 s, verdicts within 2 s. Floods take both cores of a small machine, and other
// work may run there too; a start is mostly work. So it may take longer where the machine needs longer than kUnhurried
// without strangers: five times what it needs more.
constexpr Nanoseconds kStart = 5 * kSecond;
constexpr Nanoseconds kUnhurried = 500 * kMillisecond;
constexpr Nanoseconds kVerdict = 2 * kSecond;
constexpr Nanoseconds kMostDelay = 2 * kSecond;

double Seconds(Nanoseconds time) { return static_cast<double>(time) / kSecond; }

// Starts all ranks but rank 0, which runs, and returns how long it took until all were ready.
Nanoseconds TimeToStartTheRest(Siege* siege, int nranks) {
  const Nanoseconds start = Now();
  for (int rank = 1; rank < nranks; ++rank) siege->Start(rank);
  EXPECT_TRUE(siege->ranks().WaitForLine("ready", Now() + kPatience)) << siege->Outputs();
  return Now() - start;
}

// Measured once for each kind of job.
Nanoseconds TimeOfACalmStart(int nranks, const char* transport) {
  static std::map<std::pair<int, std::string>, Nanoseconds> known;
  if (known.contains({nranks, transport})) return known[{nranks, transport}];
  Siege siege(nranks, transport);
  siege.Start(0);
  const Nanoseconds took = TimeToStartTheRest(&siege, nranks);
  siege.ExpectWorkAndEnd(nranks);
  return known[{nranks, transport}] = took;
}

// Strangers that are silent, or of which each says the beginning of a handshake, or a whole hello.
constexpr const char* kFlood = "flood";
constexpr const char* kBabble = "babble";

// Beside both kinds.
class FloodTest : public testing::TestWithParam<const char*> {
 protected:
  // A job of kRanks that is at work, or waits for Go, and a flood. All ranks do what `arguments` say, but `special`.
  void Begin(const RankProcesses::Environment& environment, const std::vector<std::string>& arguments, int special = -1,
             const std::vector<std::string>& special_arguments = {}) {
    siege_ = std::make_unique<Siege>(kRanks, "tcp", environment);
    for (int rank = 0; rank < kRanks; ++rank) {
      siege_->Start(rank, {}, rank == special ? special_arguments : arguments);
    }
    ASSERT_TRUE(siege_->ranks().WaitForLine("ready", Now() + kPatience)) << siege_->Outputs();
    SendFloods();
  }

  void SendFloods() {
    for (Child*& flood : floods_) flood = siege_->Send(GetParam());
    for (Child* flood : floods_) siege_->Hear(flood, "flooding");
  }

  // Has the ranks that wait make their call.
  Nanoseconds Go() {
    const Nanoseconds since = Now();
    for (Child* worker : siege_->ranks().workers()) worker->CloseInput();
    return since;
  }

  // Ranks started beside the floods as soon as they should, where a start without floods takes `calm`.
  static void ExpectSoonEnough(Nanoseconds beside, Nanoseconds calm) {
    EXPECT_LE(beside, kStart + 5 * std::max<Nanoseconds>(calm - kUnhurried, 0));
  }

  // Ends the floods, and counts their connections.
  void EndFloods() {
    for (Child* flood : floods_) flood->CloseInput();
    connections_ = 0;
    for (Child* flood : floods_) connections_ += siege_->HearNumber(flood, "attacked");
  }

  // All ranks but `culprit` have one verdict about it, within `limit` of `since`.
  void ExpectVerdict(int culprit, int status, Nanoseconds since, Nanoseconds limit) {
    const std::vector<WorkerVerdict> verdicts = siege_->ranks().Verdicts(culprit, Now() + kPatience);
    Nanoseconds last = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == culprit) continue;
      ASSERT_TRUE(verdicts[rank].valid) << siege_->Outputs();
      EXPECT_EQ(verdicts[rank].status, status) << siege_->Outputs();
      EXPECT_EQ(verdicts[rank].rank, culprit) << siege_->Outputs();
      EXPECT_EQ(verdicts[rank].message, verdicts[culprit == 0 ? 1 : 0].message);
      last = std::max(last, verdicts[rank].at - since);
    }
    EndFloods();
    std::printf("%s: the last verdict came after %.2f s, beside %d connections: %s\n", GetParam(), Seconds(last),
                connections_, verdicts[culprit == 0 ? 1 : 0].message.c_str());
    EXPECT_LE(last, limit);
  }

  std::unique_ptr<Siege> siege_;
  Child* floods_[2] = {};
  int connections_ = 0;
};

// Beside that kind; in ./test soak beside both.
class SilentFloodTest : public FloodTest {};
class BabbleTest : public FloodTest {};

TEST_P(FloodTest, RanksStartBesideIt) {
  constexpr int kManyRanks = 8;
  for (const char* transport : {"tcp", "shm"}) {
    SCOPED_TRACE(transport);
    const Nanoseconds calm = TimeOfACalmStart(kManyRanks, transport);
    siege_ = std::make_unique<Siege>(kManyRanks, transport);
    siege_->Start(0);
    SendFloods();
    siege_->AwaitLogged("too many unproven");
    const Nanoseconds beside = TimeToStartTheRest(siege_.get(), kManyRanks);
    if (HasFailure()) return;
    EndFloods();
    std::printf("%s, %s: %d ranks started within %.2f s beside %d connections, otherwise within %.2f s\n", GetParam(),
                transport, kManyRanks, Seconds(beside), connections_, Seconds(calm));
    ExpectSoonEnough(beside, calm);
    siege_->ExpectWorkAndEnd(kManyRanks);
  }
}

// The hello of one rank comes 80 ms after its connection, and each further word as late. In that time hundreds of
// strangers come, from another host than its own.
TEST_P(FloodTest, ARankThatIsSlowToSayItsHelloGetsIn) {
  const Nanoseconds calm = TimeOfACalmStart(kRanks, "tcp");
  siege_ = std::make_unique<Siege>(kRanks, "tcp");
  siege_->Start(0);
  SendFloods();
  siege_->AwaitLogged("too many unproven");
  const FarPath path(siege_->ranks().port(), "127.0.0.2");
  const Nanoseconds since = Now();
  for (int rank = 1; rank < kRanks; ++rank) {
    const bool is_far = rank == kRanks - 1;
    siege_->Start(rank, is_far ? RankProcesses::Environment{{"ANNULUS_RENDEZVOUS", path.address()}}
                               : RankProcesses::Environment{});
  }
  ASSERT_TRUE(siege_->ranks().WaitForLine("ready", Now() + kPatience)) << siege_->Outputs();
  const Nanoseconds took = Now() - since;
  EndFloods();
  std::printf("%s: a rank 80 ms away was in after %.2f s, beside %d connections\n", GetParam(), Seconds(took),
              connections_);
  ExpectSoonEnough(took, calm);
  siege_->ExpectWorkAndEnd(kRanks);
}

TEST_P(SilentFloodTest, MissingRankIsNamedInTimeBesideIt) {
  constexpr Nanoseconds kLimit = 3 * kSecond;
  Siege siege(3, "tcp");
  const Nanoseconds start = Now();
  for (int rank = 0; rank < 2; ++rank) {
    siege.Start(rank, {{"ANNULUS_CONNECT_TIMEOUT_MS", std::to_string(kLimit / kMillisecond)}});
  }
  Child* const flood = siege.Send(GetParam());
  for (int rank = 0; rank < 2; ++rank) {
    Child& worker = siege.ranks().worker(rank);
    EXPECT_EQ(worker.ExitStatus(Now() + kPatience), 1) << worker.output();
    EXPECT_NE(worker.After("create").find("rank 2 did not arrive"), std::string::npos) << worker.output();
  }
  const Nanoseconds took = Now() - start;
  flood->CloseInput();
  std::printf("%s: a missing rank was named after %.2f s, of %.2f s that it has\n", GetParam(), Seconds(took),
              Seconds(kLimit));
  EXPECT_LT(took, kLimit + kMostDelay);
}

TEST_P(BabbleTest, ACollectiveKeepsItsDeadlineBesideIt) {
  constexpr Nanoseconds kDeadline = 3 * kSecond;
  Begin({{"ANNULUS_TIMEOUT_MS", std::to_string(kDeadline / kMillisecond)}, {"FAULT_AWAITS_INPUT", "1"}}, {"loop"}, 2,
        {"idle"});
  ExpectVerdict(2, ANNULUS_TIMEOUT, Go(), kDeadline + kVerdict);
}

TEST_P(SilentFloodTest, ADeathIsNamedInTimeBesideIt) {
  for (const int culprit : {2, 0}) {
    Begin({}, {"loop"});
    const Nanoseconds since = Now();
    siege_->ranks().Signal(culprit, SIGKILL);
    ExpectVerdict(culprit, ANNULUS_PEER_LOST, since, kVerdict);
  }
}

TEST_P(BabbleTest, ADeathDuringASplitIsNamedInTimeBesideIt) {
  Begin({{"FAULT_AWAITS_INPUT", "1"}}, {"dup"}, 3, {"vanish"});
  Go();
  Child& dying = siege_->ranks().worker(3);
  ASSERT_TRUE(Child::Wait(
      {&dying}, [&] { return dying.HasLine("vanishing"); }, Now() + kPatience))
      << dying.output();
  ExpectVerdict(3, ANNULUS_PEER_LOST, Now(), kVerdict);
}

// The strangers come to the doors of the new communicators too, while these are open.
TEST_P(SilentFloodTest, SplitsTakeSecondsBesideIt) {
  Begin({{"FAULT_AWAITS_INPUT", "1"}}, {"splits", "0"}, 3, {"splits", "1"});
  Go();
  Nanoseconds longest = 0;
  for (Child* worker : siege_->ranks().workers()) {
    EXPECT_EQ(worker->ExitStatus(Now() + kPatience), 0) << siege_->Outputs();
    EXPECT_NE(worker->After("splits"), "") << siege_->Outputs();
    longest = std::max<Nanoseconds>(longest, std::atoll(worker->After("splits").c_str()));
  }
  EndFloods();
  std::printf("%s: the longest split took %.2f s beside %d connections\n", GetParam(), Seconds(longest), connections_);
  EXPECT_LE(longest, kStart);
}

// Rank 0 waits 1.5 s for a rank whose connection was reset. It comes back through the door that the flood is at.
TEST_P(BabbleTest, AControlConnectionIsMadeAgainBesideIt) {
  std::string why;
  const std::unique_ptr<Hosts> hosts = Hosts::Create(&why);
  if (hosts == nullptr) GTEST_SKIP() << why;
  hosts->Enter(0);
  Begin({{"ANNULUS_LOG", "info"}}, {"until"});
  const Nanoseconds since = Now();
  hosts->ResetConnections(0, siege_->ranks().port());
  Child* judge = &siege_->ranks().worker(0);
  EXPECT_TRUE(Child::Wait(
      {judge}, [&] { return judge->CountLines("came back") == kRanks - 1; }, Now() + kPatience))
      << siege_->Outputs();
  const Nanoseconds took = Now() - since;
  EndFloods();
  std::printf("%s: %d ranks came back within %.2f s beside %d connections\n", GetParam(), kRanks - 1, Seconds(took),
              connections_);
  siege_->ExpectWorkAndEnd(kRanks);
}

std::string NameOf(const testing::TestParamInfo<const char*>& info) { return info.param; }

// `in_quick` alone, or in ./test soak both.
std::vector<const char*> KindsFrom(const char* in_quick) {
  if (Rounds(1, 2) == 1) return {in_quick};
  return {kFlood, kBabble};
}

INSTANTIATE_TEST_SUITE_P(Kinds, FloodTest, testing::Values(kFlood, kBabble), NameOf);
INSTANTIATE_TEST_SUITE_P(Kinds, SilentFloodTest, testing::ValuesIn(KindsFrom(kFlood)), NameOf);
INSTANTIATE_TEST_SUITE_P(Kinds, BabbleTest, testing::ValuesIn(KindsFrom(kBabble)), NameOf);

}  // namespace
}  // namespace annulus
