// Small calls that send what they have when they are started, though nobody waits for them yet.

#include <annulus.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/comm/communicator.h"
#include "tests/collectives/harness/c_call.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr size_t kCount = 3;
constexpr int kRounds = 200;
constexpr int64_t kShortTimeoutMs = 700;

ClusterConfig ConfigOf(const char* transport, int nranks) {
  ClusterConfig config;
  config.transport = transport;
  config.nranks = nranks;
  config.tcp_sockets = 1;
  return config;
}

// What is started next repeats this, and finds a request that is spare.
void Warm(annulus_comm_t* comm, int rank) {
  for (int i = 0; i < 3; ++i) {
    Numbers out(kCount);
    annulus_request_t* request = nullptr;
    const Numbers in = Contribution(rank, kCount, i);
    ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
    ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK) << LastMessage(comm);
    ASSERT_EQ(annulus_request_free(request), ANNULUS_OK);
  }
}

// Calls `act` with the warm communicators of two ranks, both on one thread.
void OnOneThread(const std::function<void(annulus_comm_t* const (&comms)[2])>& act) {
  annulus_comm_t* comms[2] = {};
  Tally warm;
  Tally over;
  Cluster(ConfigOf("shm", 2)).Run([&](annulus_comm_t* own, int rank) {
    Warm(own, rank);
    comms[rank] = own;
    warm.Add();
    if (rank == 1) {
      ASSERT_TRUE(over.WaitFor(1));
      return;
    }
    ASSERT_TRUE(warm.WaitFor(2));
    act(comms);
    over.Add();
  });
}

// One look by a wait, which drives no more than what is there.
bool EndsAtFirstLook(annulus_comm_t* comm, annulus_request_t* request) {
  auto* const communicator = reinterpret_cast<Communicator*>(comm);
  return communicator->WaitAgain(reinterpret_cast<RequestHandle>(request), 0) == Code::kOk;
}

enum class Form { kNamed, kSubmitted, kWithOptions };

annulus_status_t Start(Form form, annulus_comm_t* comm, const Numbers& in, Numbers* out, annulus_request_t** request,
                       int64_t timeout_ms = kFarTimeoutMs) {
  if (form == Form::kNamed) return SumAsync(comm, in, out, request);
  annulus_call_t call{};
  call.struct_bytes = sizeof call;
  call.kind = ANNULUS_CALL_ALLREDUCE;
  call.sendbuf = in.data();
  call.recvbuf = out->data();
  call.count = in.size();
  call.type = ANNULUS_INT64;
  call.op = ANNULUS_SUM;
  if (form == Form::kWithOptions) {
    call.label = "gradients of a layer with a name of some length";
    call.timeout_ms = timeout_ms;
  }
  return annulus_submit(comm, &call, 1, request);
}

// Both ranks in one thread. Each round starts `each` calls on both, and then ends all but the last ones in turn, so
// that nobody has waited for the last one of rank 0 when rank 1 looks for its own once. Returns how often that ended
// then; a progress thread may have taken the turn of either.
int RunRounds(annulus_comm_t* const (&comms)[2], Form form, size_t each) {
  int at_first_look = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Numbers> in[2], out[2];
    std::vector<annulus_request_t*> requests[2];
    for (const int rank : {0, 1}) {
      in[rank] = std::vector<Numbers>(each, Contribution(rank, kCount, round));
      out[rank] = std::vector<Numbers>(each, Numbers(kCount));
      requests[rank] = std::vector<annulus_request_t*>(each);
    }
    for (size_t i = 0; i < each; ++i) {
      for (const int rank : {0, 1})
        EXPECT_EQ(Start(form, comms[rank], in[rank][i], &out[rank][i], &requests[rank][i]), ANNULUS_OK);
    }
    for (size_t i = 0; i < each; ++i) {
      if (i + 1 == each) at_first_look += EndsAtFirstLook(comms[1], requests[1][i]) ? 1 : 0;
      for (const int rank : {1, 0}) EXPECT_EQ(annulus_request_wait(requests[rank][i], -1), ANNULUS_OK);
    }
    for (const int rank : {0, 1}) {
      for (annulus_request_t* const request : requests[rank]) EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
      EXPECT_EQ(out[rank], std::vector<Numbers>(each, SumOfAll(2, kCount, round)));
    }
  }
  return at_first_look;
}

// The same for one call of any kind at a time, of int64: those of `turns`, one after the other.
int RunRoundsOf(annulus_comm_t* const (&comms)[2], const std::vector<Call>& turns) {
  int at_first_look = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Call& call = turns[static_cast<size_t>(round) % turns.size()];
    std::vector<Bytes> in;
    for (const int rank : {0, 1}) in.push_back(MakeInput(call.type, InputElements(call, 2), rank, round));
    Bytes out[2];
    annulus_request_t* requests[2] = {};
    for (const int rank : {0, 1}) {
      out[rank].resize(OutputElements(call, 2) * sizeof(int64_t));
      const void* const from = in[rank].data();
      const annulus_status_t started =
          IsDirect(call.kind) ? SubmitPartsCall(comms[rank], {call, from, out[rank].data()}, &requests[rank])
                              : SubmitCall(comms[rank], call, from, out[rank].data(), &requests[rank]);
      EXPECT_EQ(started, ANNULUS_OK) << LastMessage();
    }
    at_first_look += EndsAtFirstLook(comms[1], requests[1]) ? 1 : 0;
    for (const int rank : {1, 0}) {
      EXPECT_EQ(annulus_request_wait(requests[rank], -1), ANNULUS_OK);
      EXPECT_EQ(annulus_request_free(requests[rank]), ANNULUS_OK);
      const Bytes expected = ExpectedOutput(call, in, rank);
      EXPECT_TRUE(expected.empty() || out[rank] == expected) << KindName(call.kind) << " on rank " << rank;
    }
  }
  return at_first_look;
}

TEST(BegunCallsTest, WhatACallSendsLeavesWhenItIsStartedAndThatOfTheNextWhenItHasEnded) {
  OnOneThread([](annulus_comm_t* const(&comms)[2]) {
    for (const Form form : {Form::kNamed, Form::kSubmitted, Form::kWithOptions}) {
      for (const size_t each : {1, 2, 3})
        EXPECT_GT(RunRounds(comms, form, each), kRounds / 2) << static_cast<int>(form) << ", " << each << " at a time";
    }
  });
}

// Rank 0 has what rank 1 needs.
std::vector<Call> CallsOfOtherKinds() {
  std::vector<Call> calls;
  for (const CollectiveKind kind :
       {CollectiveKind::kReduceScatter, CollectiveKind::kAllgather, CollectiveKind::kBroadcast, CollectiveKind::kReduce,
        CollectiveKind::kGather, CollectiveKind::kScatter, CollectiveKind::kAlltoall}) {
    Call call;
    call.kind = kind;
    call.type = DataType::kInt64;
    call.count = kCount;
    call.root = kind == CollectiveKind::kReduce || kind == CollectiveKind::kGather ? 1 : 0;
    calls.push_back(call);
  }
  return calls;
}

// Rank 1 has all it needs when rank 0 has started its call, and nobody waits there.
TEST(BegunCallsTest, SoDoesWhatCollectivesOfOtherKindsSend) {
  OnOneThread([](annulus_comm_t* const(&comms)[2]) {
    for (const Call& call : CallsOfOtherKinds())
      EXPECT_GT(RunRoundsOf(comms, {call}), kRounds / 2) << KindName(call.kind);
  });
}

TEST(BegunCallsTest, SoDoesWhatAFewCallsThatTakeTurnsSend) {
  OnOneThread([](annulus_comm_t* const(&comms)[2]) {
    std::vector<Call> turns = CallsOfOtherKinds();
    EXPECT_GT(RunRoundsOf(comms, turns), kRounds / 2);
    Call large = turns.front();  // It is planned each time, and keeps the others from nothing.
    large.count = 100'000;
    turns.push_back(large);
    EXPECT_GT(RunRoundsOf(comms, turns), kRounds / 2);
  });
}

uint64_t Ended(annulus_comm_t* comm) {
  annulus_counters_t counters{};
  counters.struct_bytes = sizeof counters;
  EXPECT_EQ(annulus_comm_counters(comm, &counters), ANNULUS_OK);
  return counters.collectives;
}

// Starts a broadcast of rank 0 on that rank, and returns whether it ended there and then.
bool EndsAtOnce(annulus_comm_t* comm, Numbers* data, annulus_request_t** request) {
  const uint64_t before = Ended(comm);
  EXPECT_EQ(annulus_broadcast_async(comm, data->data(), data->data(), data->size(), ANNULUS_INT64, 0, request),
            ANNULUS_OK)
      << LastMessage(comm);
  return Ended(comm) > before;
}

// The root sends and is through. What it sent is there when the other starts its call, which then is through too, once
// it has found that the root is ahead of it.
TEST(BegunCallsTest, ACallThatHasAllItNeedsEndsWhenItIsStarted) {
  OnOneThread([](annulus_comm_t* const(&comms)[2]) {
    int ended[2] = {};
    for (int round = 0; round < kRounds; ++round) {
      Numbers data[2] = {Contribution(0, kCount, round), Numbers(kCount)};
      annulus_request_t* requests[2] = {};
      for (const int rank : {0, 1}) ended[rank] += EndsAtOnce(comms[rank], &data[rank], &requests[rank]) ? 1 : 0;
      for (const int rank : {1, 0}) {
        EXPECT_EQ(annulus_request_wait(requests[rank], -1), ANNULUS_OK);
        EXPECT_EQ(annulus_request_free(requests[rank]), ANNULUS_OK);
      }
      EXPECT_EQ(data[1], Contribution(0, kCount, round));
    }
    EXPECT_GT(ended[0], kRounds / 2);
    EXPECT_GT(ended[1], kRounds / 2);
  });
}

struct Variant {
  const char* transport;
  int nranks;
};

class BegunCallsOfTest : public testing::TestWithParam<Variant> {
 protected:
  int nranks() const { return GetParam().nranks; }
};

// Starts several, of which the first sends at once, and makes others before anyone waits.
TEST_P(BegunCallsOfTest, OtherCallsAndMessagesMayFollowIt) {
  Cluster(ConfigOf(GetParam().transport, nranks())).Run([&](annulus_comm_t* comm, int rank) {
    ASSERT_NO_FATAL_FAILURE(Warm(comm, rank));
    for (int round = 0; round < kRounds; ++round) {
      const Numbers in = Contribution(rank, kCount, round);
      Numbers out(kCount);
      Numbers next(kCount);
      Numbers large(5000);
      annulus_request_t* first = nullptr;
      annulus_request_t* second = nullptr;
      ASSERT_EQ(SumAsync(comm, in, &out, &first), ANNULUS_OK);
      if ((round + rank) % 3 == 1) {
        ASSERT_NE(annulus_request_test(first), ANNULUS_INVALID_ARGUMENT);
      }
      if (round % 2 == 0) {
        const int to = (rank + 1) % nranks(), from = (rank + nranks() - 1) % nranks();
        ASSERT_EQ(annulus_sendrecv(comm, in.data(), kCount, to, next.data(), kCount, from, ANNULUS_INT64), ANNULUS_OK);
        ASSERT_EQ(next, Contribution(from, kCount, round));
      }
      if ((round + rank) % 3 == 2) {
        ASSERT_NE(annulus_request_wait(first, 0), ANNULUS_INVALID_ARGUMENT);
      }
      ASSERT_EQ(SumAsync(comm, in, &next, &second), ANNULUS_OK);
      // Takes its place behind both, and is of another size and algorithm.
      ASSERT_EQ(Sum(comm, Contribution(rank, large.size(), round), &large), ANNULUS_OK) << LastMessage(comm);
      ASSERT_EQ(large, SumOfAll(nranks(), large.size(), round));
      for (annulus_request_t* const each : {first, second}) {
        ASSERT_EQ(annulus_request_wait(each, -1), ANNULUS_OK);
        ASSERT_EQ(annulus_request_free(each), ANNULUS_OK);
      }
      ASSERT_EQ(out, SumOfAll(nranks(), kCount, round));
      ASSERT_EQ(next, SumOfAll(nranks(), kCount, round));
      ASSERT_NO_FATAL_FAILURE(Warm(comm, rank));
    }
  });
}

TEST_P(BegunCallsOfTest, TheTimeLimitEndsItWhetherItIsAwaitedOrNot) {
  for (const bool waits : {false, true}) {
    Tally over;
    Cluster(ConfigOf(GetParam().transport, nranks())).Run([&](annulus_comm_t* comm, int rank) {
      ASSERT_NO_FATAL_FAILURE(Warm(comm, rank));
      if (rank == 0) {
        const Numbers in = Contribution(rank, kCount, 0);
        Numbers out(kCount);
        annulus_request_t* request = nullptr;
        ASSERT_EQ(Start(Form::kWithOptions, comm, in, &out, &request, kShortTimeoutMs), ANNULUS_OK);
        const Nanoseconds begin = Now();
        while (!waits && LastError(comm).status == ANNULUS_OK && Now() - begin < kSoon) std::this_thread::yield();
        if (!waits) {
          EXPECT_EQ(LastError(comm).status, ANNULUS_TIMEOUT);
        }
        EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_TIMEOUT) << LastMessage(comm);
        EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
        over.Add();
      }
      ASSERT_TRUE(over.WaitFor(1));
    });
  }
}

// Nobody was woken for it, and nobody comes.
TEST_P(BegunCallsOfTest, TheCommunicatorsTimeLimitEndsOneThatWasStartedAfterAPauseAndLeftAlone) {
  Tally over;
  ClusterConfig config = ConfigOf(GetParam().transport, nranks());
  config.timeout_ms = kShortTimeoutMs;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    ASSERT_NO_FATAL_FAILURE(Warm(comm, rank));
    if (rank == 0) {
      const Deadline until = DeadlineAfter(kSecond / 3);  // The progress thread falls asleep.
      while (Now() < until) std::this_thread::yield();
      const Numbers in = Contribution(rank, kCount, 0);
      Numbers out(kCount);
      annulus_request_t* request = nullptr;
      ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
      const Nanoseconds begin = Now();
      while (LastError(comm).status == ANNULUS_OK && Now() - begin < kSoon) std::this_thread::yield();
      EXPECT_EQ(LastError(comm).status, ANNULUS_TIMEOUT);
      EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_TIMEOUT) << LastMessage(comm);
      EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
      over.Add();
    }
    ASSERT_TRUE(over.WaitFor(1));
  });
}

INSTANTIATE_TEST_SUITE_P(Variants, BegunCallsOfTest,
                         testing::Values(Variant{"shm", 2}, Variant{"shm", 3}, Variant{"tcp", 2}),
                         [](const auto& info) {
                           return std::string(info.param.transport) + std::to_string(info.param.nranks);
                         });

}  // namespace
}  // namespace annulus
