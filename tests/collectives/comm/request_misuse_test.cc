// Handles of requests that must not be used any more, or never could: each use is an error that says why, and nothing
// else.

#include <annulus.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

ClusterConfig Ranks(int nranks) {
  ClusterConfig config;
  config.nranks = nranks;
  config.timeout_ms = kFarTimeoutMs;
  return config;
}

// All three functions refuse the handle, with a message that has `why` in it.
void ExpectStale(annulus_request_t* request, const std::string& why) {
  const std::vector<std::pair<const char*, std::function<annulus_status_t()>>> uses = {
      {"wait", [&] { return annulus_request_wait(request, -1); }},
      {"test", [&] { return annulus_request_test(request); }},
      {"free", [&] { return annulus_request_free(request); }},
  };
  for (const auto& [name, use] : uses) {
    EXPECT_EQ(use(), ANNULUS_INVALID_ARGUMENT) << name;
    const std::string message = LastMessage();
    EXPECT_NE(message.find(why), std::string::npos) << name << ": " << message;
    char handle[32];
    std::snprintf(handle, sizeof handle, "%#llx",
                  static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(request)));
    EXPECT_NE(message.find(handle), std::string::npos) << name << ": " << message;
  }
}

annulus_request_t* DoneSum(annulus_comm_t* comm, const Numbers& in, Numbers* out) {
  annulus_request_t* request = nullptr;
  EXPECT_EQ(SumAsync(comm, in, out, &request), ANNULUS_OK);
  EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
  return request;
}

TEST(RequestOutcomeTest, AnOutcomeStaysUntilTheRequestIsFreed) {
  Cluster(Ranks(2)).Run([](annulus_comm_t* comm, int rank) {
    const Numbers in = Contribution(rank, 100, 0);
    Numbers out(in.size());
    annulus_request_t* request = DoneSum(comm, in, &out);
    for (int64_t again_ms : {0, 1, -1}) EXPECT_EQ(annulus_request_wait(request, again_ms), ANNULUS_OK);
    EXPECT_EQ(annulus_request_test(request), ANNULUS_OK);
    EXPECT_EQ(annulus_request_wait(request, -2), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    EXPECT_EQ(Sum(comm, in, &out), ANNULUS_OK) << "the communicator stays usable";
  });
}

TEST(RequestOutcomeTest, AFailureStaysToo) {
  Numbers in(10);
  Numbers out(10);
  Cluster(Ranks(2)).Run([&](annulus_comm_t* comm, int rank) {
    if (rank == 1) return;
    annulus_request_t* request = nullptr;
    ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
    EXPECT_EQ(annulus_comm_abort(comm, "enough"), ANNULUS_OK);
    const annulus_status_t outcome = annulus_request_wait(request, -1);
    EXPECT_TRUE(outcome == ANNULUS_ABORTED || outcome == ANNULUS_PEER_LOST) << outcome;
    EXPECT_EQ(annulus_request_wait(request, -1), outcome);
    EXPECT_EQ(annulus_request_test(request), outcome);
    EXPECT_EQ(LastError(comm).status, outcome) << "the verdict stays";
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
  });
}

TEST(RequestMisuseTest, AFreedRequestIsNamed) {
  Cluster(Ranks(2)).Run([](annulus_comm_t* comm, int rank) {
    const Numbers in = Contribution(rank, 100, 0);
    Numbers out(in.size());
    annulus_request_t* const freed = DoneSum(comm, in, &out);
    EXPECT_EQ(annulus_request_free(freed), ANNULUS_OK);
    ExpectStale(freed, "was freed");
    // Whatever takes its place has another handle.
    std::set<annulus_request_t*> seen = {freed};
    for (int i = 0; i < 300; ++i) {
      annulus_request_t* const next = DoneSum(comm, in, &out);
      EXPECT_TRUE(seen.insert(next).second);
      ExpectStale(freed, "was freed");
      EXPECT_EQ(annulus_request_free(next), ANNULUS_OK);
    }
  });
}

TEST(RequestMisuseTest, ARequestEndsWithItsCommunicator) {
  std::vector<annulus_request_t*> kept(2 * 4);
  const Numbers in(10);
  std::vector<Numbers> outs(kept.size(), Numbers(10));
  Cluster(Ranks(2)).Run([&](annulus_comm_t* comm, int rank) {
    annulus_request_t** mine = &kept[rank * 4];
    Numbers* out = &outs[rank * 4];
    mine[0] = DoneSum(comm, in, &out[0]);
    ASSERT_EQ(SumAsync(comm, in, &out[1], &mine[1]), ANNULUS_OK);
    mine[2] = DoneSum(comm, in, &out[2]);
    Calls group;
    for (int i = 0; i < 2; ++i) group.Allreduce(in.data(), out[3].data() + 5 * i, 5, ANNULUS_INT64, ANNULUS_SUM);
    ASSERT_EQ(group.Submit(comm, &mine[3]), ANNULUS_OK);
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
  for (annulus_request_t* request : kept) ExpectStale(request, "its communicator was destroyed");
  // Another one may have their places.
  Cluster(Ranks(2)).Run([&](annulus_comm_t* comm, int rank) {
    Numbers out(10);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(annulus_request_free(DoneSum(comm, in, &out)), ANNULUS_OK);
    if (rank == 0) {
      for (annulus_request_t* request : kept) ExpectStale(request, "request");
    }
  });
}

TEST(RequestMisuseTest, GarbageIsNoRequest) {
  int local = 0;
  Cluster(Ranks(1)).Run([&](annulus_comm_t* comm, int) {
    const Numbers in(10);
    Numbers out(10);
    annulus_request_t* const good = DoneSum(comm, in, &out);
    const uintptr_t bits = reinterpret_cast<uintptr_t>(good);
    std::vector<uintptr_t> garbage = {1,
                                      reinterpret_cast<uintptr_t>(&local),
                                      reinterpret_cast<uintptr_t>(comm),
                                      reinterpret_cast<uintptr_t>(in.data()),
                                      UINTPTR_MAX,
                                      bits ^ (uintptr_t{1} << 63),
                                      bits + (uintptr_t{2} << 32),
                                      bits + (uintptr_t{1} << 32),
                                      bits | 0xffffffff,
                                      bits | 0xfffff000};
    for (int bit = 56; bit < 64; ++bit) garbage.push_back(bits ^ (uintptr_t{1} << bit));
    for (uintptr_t value : garbage) ExpectStale(reinterpret_cast<annulus_request_t*>(value), "never gave it out");
    std::mt19937_64 random(1);
    for (int i = 0; i < 20000; ++i) {
      // Half of them look like handles.
      const uintptr_t value = i % 2 == 0 ? random() : (bits & ~(UINTPTR_MAX >> 8)) | (random() >> 8);
      if (value == bits) continue;
      EXPECT_EQ(annulus_request_test(reinterpret_cast<annulus_request_t*>(value)), ANNULUS_INVALID_ARGUMENT);
    }
    EXPECT_EQ(annulus_request_wait(nullptr, 0), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_request_free(nullptr), ANNULUS_OK);
    EXPECT_EQ(annulus_request_free(good), ANNULUS_OK);
  });
}

TEST(RequestMisuseTest, ThreadsThatFreeWhatOthersWaitForDoNoHarm) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 200;
  Cluster(Ranks(2)).Run([](annulus_comm_t* comm, int rank) {
    const Numbers in = Contribution(rank, 50, 0);
    for (int round = 0; round < kRounds; ++round) {
      Numbers out(in.size());
      annulus_request_t* request = nullptr;
      ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
      std::atomic<int> freed{0};
      std::atomic<int> odd{0};
      {
        std::vector<std::jthread> threads;
        for (int i = 0; i < kThreads; ++i) {
          threads.emplace_back([&, i] {
            const annulus_status_t status = annulus_request_wait(request, -1);
            if (status != ANNULUS_OK && status != ANNULUS_INVALID_ARGUMENT) ++odd;
            if (i % 2 == 0 && annulus_request_free(request) == ANNULUS_OK) ++freed;
          });
        }
      }
      EXPECT_EQ(freed, 1);
      EXPECT_EQ(odd, 0);
      EXPECT_EQ(out, SumOfAll(2, in.size(), 0));
    }
  });
}

}  // namespace
}  // namespace annulus
