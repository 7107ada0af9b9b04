// Small calls that send what they have when they are started, though nobody waits for them yet.

#include <annulus.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "collectives/comm/communicator.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr size_t kCount = 3;
constexpr int kRounds = 200;

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

// One look by a wait, which drives no more than what is there.
bool EndsAtFirstLook(annulus_comm_t* comm, annulus_request_t* request) {
  auto* const communicator = reinterpret_cast<Communicator*>(comm);
  return communicator->WaitAgain(reinterpret_cast<RequestHandle>(request), 0) == Code::kOk;
}

TEST(BegunCallsTest, WhatACallSendsLeavesWhenItIsStarted) {
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
    int at_first_look = 0;
    for (int round = 0; round < kRounds; ++round) {
      Numbers in[2] = {Contribution(0, kCount, round), Contribution(1, kCount, round)};
      Numbers out[2] = {Numbers(kCount), Numbers(kCount)};
      annulus_request_t* requests[2] = {};
      for (const int each : {0, 1}) ASSERT_EQ(SumAsync(comms[each], in[each], &out[each], &requests[each]), ANNULUS_OK);
      // Nobody has waited for that of rank 0. A progress thread may have taken the turn of either.
      at_first_look += EndsAtFirstLook(comms[1], requests[1]) ? 1 : 0;
      for (const int each : {1, 0}) {
        ASSERT_EQ(annulus_request_wait(requests[each], -1), ANNULUS_OK);
        ASSERT_EQ(annulus_request_free(requests[each]), ANNULUS_OK);
        ASSERT_EQ(out[each], SumOfAll(2, kCount, round));
      }
    }
    EXPECT_GT(at_first_look, kRounds / 2);
    over.Add();
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
    Warm(comm, rank);
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
    ClusterConfig config = ConfigOf(GetParam().transport, nranks());
    config.timeout_ms = 700;
    Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
      Warm(comm, rank);
      if (rank == 0) {
        Numbers out(kCount);
        annulus_request_t* request = nullptr;
        const Numbers in = Contribution(rank, kCount, 0);
        ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
        const Nanoseconds begin = Now();
        while (!waits && LastError(comm).status == ANNULUS_OK && Now() - begin < kSoon) std::this_thread::yield();
        EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_TIMEOUT) << LastMessage(comm);
        EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
        over.Add();
      }
      ASSERT_TRUE(over.WaitFor(1));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, BegunCallsOfTest,
                         testing::Values(Variant{"shm", 2}, Variant{"shm", 3}, Variant{"tcp", 2}),
                         [](const auto& info) {
                           return std::string(info.param.transport) + std::to_string(info.param.nranks);
                         });

}  // namespace
}  // namespace annulus
