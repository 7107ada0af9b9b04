// Groups of small collectives other than allreduces: submitted and driven by the short cut, one call after the other.

#include <annulus.h>
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/comm/communicator.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kBroadcast, CollectiveKind::kAllgather, CollectiveKind::kReduceScatter, CollectiveKind::kReduce,
    CollectiveKind::kGather,    CollectiveKind::kScatter,   CollectiveKind::kAlltoall,      CollectiveKind::kBarrier};
constexpr int kRounds = 25;

// A group of one rank, and what is to come of it.
class Group {
 public:
  Group(int rank, int nranks, int round) : rank_(rank), nranks_(nranks), round_(round) {}

  // Adds `times` calls of the kind; a root changes from round to round.
  void Add(CollectiveKind kind, size_t count, int times) {
    for (int i = 0; i < times; ++i) {
      auto part = std::make_unique<Part>();
      part->call.kind = kind;
      part->call.type = DataType::kInt64;
      part->call.count = kind == CollectiveKind::kBarrier ? 0 : count;
      part->call.root = HasRoot(kind) ? round_ % nranks_ : 0;
      const uint64_t seed = static_cast<uint64_t>(round_) * 1000 + parts_.size();
      for (int r = 0; r < nranks_; ++r)
        part->inputs.push_back(MakeInput(part->call.type, InputElements(part->call, nranks_), r, seed));
      part->out.assign(OutputElements(part->call, nranks_) * sizeof(int64_t), std::byte{0x5a});
      CallArguments arguments;
      arguments.kind = kind;
      arguments.sendbuf = part->inputs[static_cast<size_t>(rank_)].data();
      arguments.recvbuf = part->out.data();
      arguments.count = part->call.count;
      arguments.type = part->call.type;
      arguments.root = part->call.root;
      arguments.options = &part->options;
      calls_.push_back(arguments);
      parts_.push_back(std::move(part));
    }
  }

  std::vector<CallArguments>& calls() { return calls_; }
  CallOptions* options(size_t i) { return &parts_[i]->options; }

  // Whether it was submitted by the short cut.
  bool TakesIt(annulus_comm_t* comm, annulus_request_t** request) {
    return reinterpret_cast<Communicator*>(comm)->SubmitAgain(calls_, request);
  }
  annulus_request_t* TakeLongWay(annulus_comm_t* comm) {
    annulus_request_t* request = nullptr;
    size_t refused = 0;
    const auto give = [&request](RequestHandle handle) { request = reinterpret_cast<annulus_request_t*>(handle); };
    EXPECT_TRUE(reinterpret_cast<Communicator*>(comm)->Submit(calls_, give, &refused).ok());
    return request;
  }

  void Check() const {
    for (const auto& part : parts_) {
      if (part->call.kind == CollectiveKind::kBarrier) continue;
      const Bytes expected = ExpectedOutput(part->call, part->inputs, rank_);
      EXPECT_TRUE(expected.empty() || part->out == expected) << KindName(part->call.kind) << " on rank " << rank_;
    }
  }

 private:
  struct Part {
    Call call;
    CallOptions options;
    std::vector<Bytes> inputs;
    Bytes out;
  };

  const int rank_;
  const int nranks_;
  const int round_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<CallArguments> calls_;
};

struct Variant {
  const char* transport;
  int nranks;
};

class SmallGroupsTest : public testing::TestWithParam<Variant> {
 protected:
  ClusterConfig config() const {
    ClusterConfig config;
    config.transport = GetParam().transport;
    config.nranks = nranks();
    config.timeout_ms = kFarTimeoutMs;
    return config;
  }
  int nranks() const { return GetParam().nranks; }
  Group GroupOf(int rank, int round) const {
    Group group(rank, nranks(), round);
    for (const CollectiveKind kind : kKinds) group.Add(kind, static_cast<size_t>(1 + round % 5), 4);
    group.Add(CollectiveKind::kAllgather, 2000, 3);  // Not all small.
    group.Add(CollectiveKind::kBroadcast, 20'000, 1);
    return group;
  }
  // Starts the progress thread.
  static void Warm(annulus_comm_t* comm) {
    const Numbers in(1);
    Numbers out(1);
    annulus_request_t* request = nullptr;
    ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
    ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
    ASSERT_EQ(annulus_request_free(request), ANNULUS_OK);
  }
  static uint64_t Ended(annulus_comm_t* comm) {
    annulus_counters_t counters{};
    counters.struct_bytes = sizeof counters;
    EXPECT_EQ(annulus_comm_counters(comm, &counters), ANNULUS_OK);
    return counters.collectives;
  }
};

std::string LastLabel() {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  EXPECT_EQ(annulus_last_error(&error), ANNULUS_OK);
  return error.label != nullptr ? error.label : "";
}

// Ranks wait in different ways, and some take the long way, as with a memory limit; the others need not know.
void RunOne(annulus_comm_t* comm, Group* group, int way) {
  annulus_request_t* request = nullptr;
  if (way % 4 == 3) {
    request = group->TakeLongWay(comm);
  } else {
    ASSERT_TRUE(group->TakesIt(comm, &request));
  }
  annulus_status_t status = ANNULUS_IN_PROGRESS;
  if (way % 4 == 1) {
    while (status == ANNULUS_IN_PROGRESS) status = annulus_request_test(request);
  } else if (way % 4 == 2) {
    while (status == ANNULUS_IN_PROGRESS) status = annulus_request_wait(request, 1);
  } else {
    status = annulus_request_wait(request, -1);
  }
  ASSERT_EQ(status, ANNULUS_OK) << LastMessage(comm);
  ASSERT_EQ(annulus_request_free(request), ANNULUS_OK);
}

TEST_P(SmallGroupsTest, EveryCallIsRightAndCountedHoweverItIsAwaited) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    ASSERT_NO_FATAL_FAILURE(Warm(comm));
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t before = Ended(comm);
      Group group = GroupOf(rank, round);
      ASSERT_NO_FATAL_FAILURE(RunOne(comm, &group, round + rank));
      group.Check();
      EXPECT_EQ(Ended(comm) - before, group.calls().size());
    }
  });
}

// A progress thread may have the turn now and then.
TEST_P(SmallGroupsTest, TheShortCutOfAWaitTellsItsGoodEnd) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    ASSERT_NO_FATAL_FAILURE(Warm(comm));
    int told = 0;
    for (int round = 0; round < kRounds; ++round) {
      Group group = GroupOf(rank, round);
      annulus_request_t* request = nullptr;
      ASSERT_TRUE(group.TakesIt(comm, &request));
      const std::optional<Code> end =
          reinterpret_cast<Communicator*>(comm)->WaitAgain(reinterpret_cast<RequestHandle>(request), -1);
      told += end == Code::kOk ? 1 : 0;
      ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
      ASSERT_EQ(annulus_request_free(request), ANNULUS_OK);
      group.Check();
    }
    EXPECT_GT(told, 0);
  });
}

// One call at a time, each of another kind than the one before, small and large.
TEST_P(SmallGroupsTest, ACallThatRepeatsNothingTakesItToo) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    ASSERT_NO_FATAL_FAILURE(Warm(comm));
    int told = 0;
    for (int round = 0; round < 2 * kRounds; ++round) {
      Group one(rank, nranks(), round);
      const auto kind = kKinds[static_cast<size_t>(round) % std::size(kKinds)];
      one.Add(kind, round % 3 == 0 ? 30'000 : 3, 1);
      annulus_request_t* request = nullptr;
      ASSERT_TRUE(one.TakesIt(comm, &request));
      const std::optional<Code> end =
          reinterpret_cast<Communicator*>(comm)->WaitAgain(reinterpret_cast<RequestHandle>(request), -1);
      told += end == Code::kOk ? 1 : 0;
      ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK) << LastMessage(comm);
      ASSERT_EQ(annulus_request_free(request), ANNULUS_OK);
      one.Check();
    }
    EXPECT_GT(told, 0);
  });
}

TEST_P(SmallGroupsTest, OtherCallsMayComeBeforeAndBehindAndNobodyNeedWait) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    ASSERT_NO_FATAL_FAILURE(Warm(comm));
    for (int round = 0; round < kRounds; ++round) {
      Numbers sum(3), last(3);
      Group group = GroupOf(rank, round);
      Group next = GroupOf(rank, round + 1);
      annulus_request_t* first = nullptr;
      annulus_request_t* second = nullptr;
      const Numbers in = Contribution(rank, 3, round);
      ASSERT_EQ(SumAsync(comm, in, &sum, &first), ANNULUS_OK);
      ASSERT_TRUE(group.TakesIt(comm, (round + rank) % 2 == 0 ? &second : nullptr));
      ASSERT_TRUE(next.TakesIt(comm, nullptr));
      ASSERT_EQ(Sum(comm, in, &last), ANNULUS_OK) << LastMessage(comm);
      for (annulus_request_t* const each : {first, second}) {
        if (each == nullptr) continue;
        ASSERT_EQ(annulus_request_wait(each, -1), ANNULUS_OK);
        ASSERT_EQ(annulus_request_free(each), ANNULUS_OK);
      }
      group.Check();
      next.Check();
      EXPECT_EQ(sum, SumOfAll(nranks(), 3, round));
      EXPECT_EQ(last, sum);
    }
  });
}

TEST_P(SmallGroupsTest, TwoThreadsMayWaitForTwoOfThem) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    ASSERT_NO_FATAL_FAILURE(Warm(comm));
    for (int round = 0; round < kRounds; ++round) {
      Group groups[2] = {GroupOf(rank, round), GroupOf(rank, round + 1)};
      annulus_request_t* requests[2] = {};
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(groups[i].TakesIt(comm, &requests[i]));
      std::thread other([&] { EXPECT_EQ(annulus_request_wait(requests[1], -1), ANNULUS_OK); });
      EXPECT_EQ(annulus_request_wait(requests[0], -1), ANNULUS_OK) << LastMessage(comm);
      other.join();
      for (int i = 0; i < 2; ++i) {
        groups[i].Check();
        ASSERT_EQ(annulus_request_free(requests[i]), ANNULUS_OK);
      }
    }
  });
}

TEST_P(SmallGroupsTest, AnEarlyPeerAsksAgainAndAMissingOneEndsItByTheCallsLimit) {
  Tally started, ended;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    ASSERT_NO_FATAL_FAILURE(Warm(comm));
    Group group = GroupOf(rank, 0);
    Group late = GroupOf(rank, 1);
    for (size_t i = 0; i < late.calls().size(); ++i) {
      late.options(i)->timeout = 400 * kMillisecond;
      late.options(i)->label = "layer norms";
    }
    annulus_request_t* request = nullptr;
    if (rank > 0) {
      ASSERT_TRUE(started.WaitFor(1));
      ASSERT_NO_FATAL_FAILURE(RunOne(comm, &group, rank));
      ASSERT_TRUE(ended.WaitFor(1));
      return;
    }
    ASSERT_TRUE(group.TakesIt(comm, &request));
    EXPECT_EQ(annulus_request_test(request), ANNULUS_IN_PROGRESS);
    EXPECT_EQ(annulus_request_wait(request, 5), ANNULUS_IN_PROGRESS);
    started.Add();
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK) << LastMessage(comm);
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    group.Check();
    ASSERT_TRUE(late.TakesIt(comm, &request));
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_TIMEOUT);
    EXPECT_EQ(LastLabel(), "layer norms");
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    ended.Add();
  });
}

// The root of a broadcast need hear from nobody, so it has to look for itself whether there is a verdict.
TEST_P(SmallGroupsTest, WhatIsStartedAfterAnAbortElsewhereIsLeftToTheLongWayWhichRefusesIt) {
  constexpr int kMostStarted = 40;  // Fewer than links have room for.
  Tally aborted, over;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    ASSERT_NO_FATAL_FAILURE(Warm(comm));
    if (rank > 0) {
      if (rank == 1) {
        EXPECT_EQ(annulus_comm_abort(comm, "enough"), ANNULUS_OK);
      }
      aborted.Add();
      ASSERT_TRUE(over.WaitFor(1));
      return;
    }
    ASSERT_TRUE(aborted.WaitFor(nranks() - 1));
    bool is_left = false;
    for (int i = 0; i < kMostStarted && !is_left; ++i) {
      const Deadline until = DeadlineAfter(kSecond / 20);
      while (Now() < until) std::this_thread::yield();
      Group one(rank, nranks(), 0);
      one.Add(CollectiveKind::kBroadcast, static_cast<size_t>(1 + i % 5), 1);
      annulus_request_t* request = nullptr;
      is_left = !one.TakesIt(comm, &request);
      if (is_left) break;
      annulus_request_wait(request, -1);
      annulus_request_free(request);
    }
    EXPECT_TRUE(is_left);
    Numbers out(1);
    EXPECT_EQ(Sum(comm, Numbers(1), &out), ANNULUS_ABORTED);
    over.Add();
  });
}

TEST_P(SmallGroupsTest, WhatIsWrongOrHasToBeCombinedTakesTheLongWay) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    ASSERT_NO_FATAL_FAILURE(Warm(comm));
    const std::vector<std::function<void(Group*)>> changes = {
        [](Group* g) { g->options(3)->agree_first = true; },
        [](Group* g) { g->options(3)->priority = 1; },
        [](Group* g) { g->calls()[4].kind = CollectiveKind::kAllreduce; },
        [](Group* g) { g->calls()[4].recvbuf = nullptr; },
        [](Group* g) { g->calls()[4].count = SIZE_MAX / 16; },
        [](Group* g) { g->calls()[0].root = 99; },
        [](Group* g) { g->calls()[0].type = static_cast<DataType>(99); },
    };
    for (size_t i = 0; i < changes.size(); ++i) {
      Group group = GroupOf(rank, 0);
      changes[i](&group);
      annulus_request_t* request = nullptr;
      EXPECT_FALSE(group.TakesIt(comm, &request)) << "change " << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Links, SmallGroupsTest,
                         testing::Values(Variant{"shm", 2}, Variant{"shm", 3}, Variant{"tcp", 2}),
                         [](const auto& info) {
                           return std::string(info.param.transport) + "_" + std::to_string(info.param.nranks);
                         });

}  // namespace
}  // namespace annulus
