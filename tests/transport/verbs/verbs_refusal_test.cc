// Jobs whose devices were fine when they were looked at, and refuse something when links are made: any call that sets
// something up, once or from then on, on one rank or on all. Both ends of each pair agree on another transport, the
// sums are right, and the log says once why. Where no other transport may be used, all ranks are told.
#include <annulus.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/comm/communicator.h"
#include "collectives/comm/explain.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/soak/rounds.h"
#include "tests/transport/verbs/verbs_job.h"
#include "tests/verbs/provider/simulated_refusals.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/rail/verbs_format.h"

namespace annulus {
namespace {

// Calls that are refused, of each of these ranks.
struct Refusals {
  std::vector<int> ranks = {};
  std::string ports = "";  // As in ANNULUS_VERBS_DEVICE, of all ranks.
  size_t first = 0;
  size_t count = SIZE_MAX;
  std::optional<SimulatedCall> kind = std::nullopt;  // All calls of this kind in place of these.
};

// What the ranks of a job saw.
struct Outcome {
  std::map<std::pair<int, int>, std::string> links;     // Transport, by rank and peer.
  std::map<std::pair<int, int>, std::string> refusals;  // By rank and peer; "" where there is none.
  std::map<int, std::string> told;                      // What ExplainLinks says, by rank.
  std::map<int, std::vector<SimulatedCall>> calls;      // By rank.
  std::vector<Status> failures;                         // Why ranks did not get a communicator.

  size_t count(const std::string& transport) const {
    return static_cast<size_t>(std::ranges::count(links, transport, [](const auto& each) { return each.second; }));
  }
};

void ReadLinks(const std::unique_ptr<Communicator>& comm, Outcome* outcome) {
  const int rank = comm->rank();
  outcome->told[rank] = ExplainLinks(Handle(comm));
  for (int peer = 0; peer < comm->nranks(); ++peer) {
    const std::string transport = comm->ReadPeer(peer).transport;
    if (transport.empty()) continue;
    outcome->links[{rank, peer}] = transport;
    outcome->refusals[{rank, peer}] = comm->Refusal(peer);
  }
}

void ExpectSums(const std::unique_ptr<Communicator>& comm) {
  for (const size_t count : {1, 300, 20'000}) {
    std::vector<int32_t> data(count, comm->rank() + 1);
    ASSERT_EQ(annulus_allreduce(Handle(comm), data.data(), data.data(), count, ANNULUS_INT32, ANNULUS_SUM), ANNULUS_OK)
        << LastMessage(Handle(comm));
    EXPECT_EQ(data, std::vector<int32_t>(count, comm->nranks() * (comm->nranks() + 1) / 2));
  }
  EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK) << LastMessage(Handle(comm));
}

class VerbsRefusalTest : public ::testing::Test {
 protected:
  ~VerbsRefusalTest() override {
    SimulatedVerbs::SetMachine({});
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_EQ(counts.objects, 0u) << "something was not given back to the provider";
    EXPECT_EQ(counts.busy, 0u) << "something was destroyed before what uses it";
    EXPECT_EQ(counts.not_ready, 0u) << "a message found no receive";
  }

  // A rank on each of `nranks` pretended hosts.
  static Outcome Run(int nranks, const Refusals& refusals, const std::string& transport = "auto") {
    const TransportInfo verbs = SimulatedVerbsInfo();
    const TransportInfo* const list[] = {&verbs, &kTcpTransport};
    VerbsJob job{.transports = list};
    job.ranks.nranks = job.ranks.hosts = nranks;
    job.ranks.transport = transport;
    job.before = [&refusals](int rank, Options* options) {
      options->verbs_device = refusals.ports;
      SimulatedRefusals::Clear();
      if (std::ranges::find(refusals.ranks, rank) == refusals.ranks.end()) return;
      if (refusals.kind) return SimulatedRefusals::Refuse(*refusals.kind, ENOMEM);
      SimulatedRefusals::Set(refusals.first, refusals.count, ENOMEM);
    };
    std::mutex mutex;
    Outcome outcome;
    job.Try([&](int rank, const std::unique_ptr<Communicator>& comm, const Status& made) {
      const std::vector<SimulatedCall> calls = SimulatedRefusals::Calls();
      SimulatedRefusals::Clear();
      {
        const std::lock_guard lock(mutex);
        outcome.calls[rank] = calls;
        if (!made.ok()) {
          outcome.failures.push_back(made);
          return;
        }
        ReadLinks(comm, &outcome);
      }
      ExpectSums(comm);
    });
    return outcome;
  }
};

// Both ends of a pair have the same transport, and know why it is not verbs.
void ExpectAgreement(const Outcome& outcome, int nranks) {
  EXPECT_TRUE(outcome.failures.empty()) << outcome.failures.front().ToString();
  EXPECT_EQ(outcome.links.size(), static_cast<size_t>(nranks * (nranks - 1)));
  for (const auto& [pair, transport] : outcome.links) {
    const std::pair<int, int> other(pair.second, pair.first);
    ASSERT_TRUE(outcome.links.contains(other));
    EXPECT_EQ(transport, outcome.links.at(other)) << pair.first << " and " << pair.second;
    EXPECT_EQ(outcome.refusals.at(pair).empty(), outcome.refusals.at(other).empty());
    if (transport == "verbs") {
      EXPECT_EQ(outcome.refusals.at(pair), "");
    }
  }
}

struct Way {
  int nranks;
  std::vector<int> ranks;
  size_t count;
};

// The calls to refuse: the first and the last of each kind; under soak, all.
std::set<size_t> Chosen(const std::vector<SimulatedCall>& calls) {
  std::set<size_t> chosen;
  std::map<SimulatedCall, size_t> last;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!last.contains(calls[i]) || Rounds(1, 2) > 1) chosen.insert(i);
    last[calls[i]] = i;
  }
  for (const auto& [call, index] : last) chosen.insert(index);
  return chosen;
}

TEST_F(VerbsRefusalTest, WhateverIsRefusedAllPairsAgreeAndTheSumsAreRight) {
  const Way ways[] = {{2, {0}, 1},        {2, {1}, SIZE_MAX}, {2, {0, 1}, SIZE_MAX},
                      {3, {0}, SIZE_MAX}, {3, {1}, 1},        {3, {0, 1, 2}, 1}};
  size_t jobs = 0;
  size_t replaced = 0;
  for (const Way& way : std::span(ways).subspan(kSanitized ? 2 : 0, kSanitized ? 2 : std::size(ways))) {
    const Outcome sound = Run(way.nranks, {});
    ASSERT_FALSE(HasFailure());
    EXPECT_EQ(sound.count("verbs"), sound.links.size());
    for (const size_t first : Chosen(sound.calls.at(way.ranks.front()))) {
      SCOPED_TRACE("call " + std::to_string(first) + ", kind " +
                   std::to_string(static_cast<int>(sound.calls.at(way.ranks.front())[first])) + ", of rank " +
                   std::to_string(way.ranks.front()) + " and " + std::to_string(way.ranks.size() - 1) + " others, of " +
                   std::to_string(way.nranks));
      const Outcome outcome = Run(way.nranks, {.ranks = way.ranks, .first = first, .count = way.count});
      ExpectAgreement(outcome, way.nranks);
      ASSERT_FALSE(HasFailure());
      ++jobs;
      replaced += static_cast<size_t>(
          std::ranges::count_if(outcome.refusals, [](const auto& each) { return !each.second.empty(); }));
    }
  }
  EXPECT_GT(replaced, jobs / 2);
  std::printf("%zu jobs, %zu ends of links that another transport made\n", jobs, replaced);
}

// A link has all its rails or none.
TEST_F(VerbsRefusalTest, WhateverIsRefusedOfTwoRailsAllPairsAgreeAndTheSumsAreRight) {
  SimulatedVerbs::SetMachine({.devices = 2});
  const Outcome sound = Run(2, {.ports = "sim0,sim1"});
  EXPECT_EQ(sound.count("verbs"), 2u);
  size_t replaced = 0;
  for (const size_t first : Chosen(sound.calls.at(0))) {
    SCOPED_TRACE("call " + std::to_string(first) + ", kind " +
                 std::to_string(static_cast<int>(sound.calls.at(0)[first])));
    const Outcome outcome = Run(2, {.ranks = {0}, .ports = "sim0,sim1", .first = first, .count = 1});
    ExpectAgreement(outcome, 2);
    ASSERT_FALSE(HasFailure());
    replaced += outcome.count("tcp");
  }
  EXPECT_GT(replaced, 0u);
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Refused transitions differ in the peer, and refused queue pairs in nothing.
TEST_F(VerbsRefusalTest, EachRankSaysOnceThatItsDeviceConnectsNothing) {
  ::testing::internal::CaptureStderr();
  const Outcome outcome = Run(3, {.ranks = {1}, .kind = SimulatedCall::kConnectToReceive});
  const std::string log = ::testing::internal::GetCapturedStderr();
  ExpectAgreement(outcome, 3);
  EXPECT_EQ(Count(log, "annulus[1] warning: links with ranks 0, 2 use tcp in place of verbs"), 1u) << log;
  EXPECT_EQ(Count(log, "warning"), 3u) << log;
}

TEST_F(VerbsRefusalTest, EachRankSaysOnceWhatWasRefusedWhereAndWhy) {
  ::testing::internal::CaptureStderr();
  const Outcome outcome = Run(3, {.ranks = {1}, .kind = SimulatedCall::kPair});
  const std::string log = ::testing::internal::GetCapturedStderr();
  ExpectAgreement(outcome, 3);
  EXPECT_EQ(outcome.count("tcp"), 4u) << "both ends of both links of rank 1";
  EXPECT_EQ(outcome.count("verbs"), 2u);
  const std::string cause =
      "rank 1's device refused it: verbs: a queue pair on sim0, port 1, RoCE v2 127.0.0.1: Cannot allocate memory";
  EXPECT_EQ(Count(log, "annulus[1] warning: links with ranks 0, 2 use tcp in place of verbs, more slowly: " + cause),
            1u)
      << log;
  for (const std::string rank : {"0", "2"}) {
    EXPECT_EQ(
        Count(log, "annulus[" + rank + "] warning: links with rank 1 use tcp in place of verbs, more slowly: " +
                       "rank 1's device refused memory or a queue pair: Cannot allocate memory (its log says more)"),
        1u)
        << log;
  }
  EXPECT_EQ(Count(log, "warning"), 3u) << log;
  EXPECT_NE(outcome.told.at(1).find("rank 0: tcp (verbs was refused: " + cause), std::string::npos)
      << outcome.told.at(1);
  EXPECT_NE(outcome.told.at(0).find("rank 1: tcp (verbs was refused: rank 1's device refused memory"),
            std::string::npos)
      << outcome.told.at(0);
  EXPECT_NE(outcome.told.at(0).find("rank 2: verbs,"), std::string::npos) << outcome.told.at(0);
}

// The device takes so many links and no more, as with a limit on locked memory; the probe had asked for one.
TEST_F(VerbsRefusalTest, MemoryForSomeLinksOnlyLeavesTheOthersToTcp) {
  // What three ranks register in all is found by trying: the limit is the machine's.
  size_t both = 0;
  for (uint64_t megabytes = 5; megabytes <= 80; megabytes += kSanitized ? 10 : 5) {
    SCOPED_TRACE(std::to_string(megabytes) + " MB");
    SimulatedVerbs::SetMachine({.most_registered_bytes = megabytes * 1'000'000});
    const Outcome outcome = Run(3, {});
    ExpectAgreement(outcome, 3);
    ASSERT_FALSE(HasFailure());
    if (outcome.count("verbs") > 0 && outcome.count("tcp") > 0) ++both;
  }
  EXPECT_GT(both, 0u);
}

// The probe asks for the queue of one link.
TEST_F(VerbsRefusalTest, AQueueThatIsTooSmallForAllLinksOfARankLeavesThemToTcp) {
  constexpr int kSlots = 8;
  SimulatedVerbs::SetMachine({.most_completions = static_cast<int>(2 * VerbsQueueDepth(kSlots) + kMostVerbsReads + 1)});
  const Outcome outcome = Run(3, {});
  ExpectAgreement(outcome, 3);
  EXPECT_EQ(outcome.count("tcp"), 6u);
  EXPECT_NE(outcome.refusals.at({0, 1}).find("completion queues for at most 81 requests"), std::string::npos)
      << outcome.refusals.at({0, 1});
}

TEST_F(VerbsRefusalTest, WhereVerbsIsSelectedByNameARefusalEndsTheJobOnAllRanks) {
  for (const SimulatedCall call : {SimulatedCall::kPair, SimulatedCall::kInitialize, SimulatedCall::kPostReceive,
                                   SimulatedCall::kConnectToReceive, SimulatedCall::kConnectToSend}) {
    for (const int rank : {0, 2}) {
      SCOPED_TRACE("kind " + std::to_string(static_cast<int>(call)) + " of rank " + std::to_string(rank));
      const Outcome outcome = Run(3, {.ranks = {rank}, .kind = call}, "verbs");
      ASSERT_EQ(outcome.failures.size(), 3u);
      std::set<std::string> messages;
      for (const Status& each : outcome.failures) messages.insert(each.message());
      EXPECT_EQ(messages.size(), 1u) << *messages.begin() << "\n" << *messages.rbegin();
      for (const Status& each : outcome.failures) EXPECT_EQ(each.peer(), rank) << each.message();
      for (const std::string& part :
           {"rank " + std::to_string(rank) + "'s device refused it", std::string("sim0, port 1, RoCE v2 127.0.0.1"),
            std::string("Cannot allocate memory")}) {
        EXPECT_NE(messages.begin()->find(part), std::string::npos) << *messages.begin();
      }
    }
  }
}

}  // namespace
}  // namespace annulus
