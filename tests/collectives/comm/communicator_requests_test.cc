// Requests: when they are in progress, when they are done, and in which order; and what destroying a communicator does
// to them.

#include <annulus.h>
#include <gtest/gtest.h>

#include <iterator>
#include <limits>
#include <thread>
#include <tuple>
#include <utility>

#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/links_fixture.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();

class RequestsTest : public LinksTest {
 protected:
  ClusterConfig config() const {
    ClusterConfig config = LinksTest::config();
    config.timeout_ms = kFarTimeoutMs;
    return config;
  }
};

TEST_P(RequestsTest, RequestIsInProgressUntilThePeersEnter) {
  Tally released;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    // The second and third call of a size repeat the first one, which is driven in another way.
    const std::pair<size_t, int64_t> rounds[] = {{1000, kForEver}, {1000, -1}, {1000, kFarTimeoutMs}, {2, kForEver},
                                                 {2, -1},          {2, -1},    {2, kFarTimeoutMs}};
    int round = 0;
    for (const auto& [count, timeout_ms] : rounds) {
      ++round;
      const Numbers in = Contribution(rank, count, round);
      Numbers out(count);
      if (rank != 0) {
        ASSERT_TRUE(released.WaitFor(round));
        ASSERT_EQ(Sum(comm, in, &out), ANNULUS_OK);
        continue;
      }
      annulus_request_t* request = nullptr;
      ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
      EXPECT_EQ(annulus_request_test(request), ANNULUS_IN_PROGRESS);
      for (int64_t short_ms : {0, 1, 20}) {
        const Nanoseconds start = Now();
        EXPECT_EQ(annulus_request_wait(request, short_ms), ANNULUS_IN_PROGRESS) << short_ms << " ms";
        EXPECT_GE(Now() - start, short_ms * kMillisecond);
      }
      released.Add();
      ASSERT_EQ(annulus_request_wait(request, timeout_ms), ANNULUS_OK) << timeout_ms << " ms";
      EXPECT_EQ(out, SumOfAll(n(), count, round));
      EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    }
  });
}

TEST_P(RequestsTest, RequestsOfEqualCallsMayBeWaitedForInAnyOrder) {
  constexpr size_t kCount = 2;
  constexpr size_t kQueued = 4;
  constexpr size_t kOrders[][kQueued] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 0, 3, 2}, {0, 3, 1, 2}};
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    for (int round = 0; round < 100; ++round) {
      Numbers in[kQueued], out[kQueued];
      annulus_request_t* requests[kQueued];
      for (size_t i = 0; i < kQueued; ++i) {
        in[i] = Contribution(rank, kCount, round + static_cast<int>(i));
        out[i] = Numbers(kCount);
        ASSERT_EQ(SumAsync(comm, in[i], &out[i], &requests[i]), ANNULUS_OK);
      }
      // The ranks wait in different orders.
      for (const size_t i : kOrders[static_cast<size_t>(round + rank) % std::size(kOrders)]) {
        ASSERT_EQ(annulus_request_wait(requests[i], -1), ANNULUS_OK);
        EXPECT_EQ(out[i], SumOfAll(n(), kCount, round + static_cast<int>(i)));
        EXPECT_EQ(annulus_request_free(requests[i]), ANNULUS_OK);
      }
    }
  });
}

TEST_P(RequestsTest, SeveralThreadsMayWaitForOneRequest) {
  constexpr size_t kCount = 1000;
  Tally released;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    const Numbers in = Contribution(rank, kCount, 0);
    Numbers out(kCount);
    annulus_request_t* request = nullptr;
    if (rank != 0) {
      ASSERT_TRUE(released.WaitFor(1));
      ASSERT_EQ(Sum(comm, in, &out), ANNULUS_OK);
      return;
    }
    ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
    {
      Sleeper sleepers[3];
      std::vector<std::jthread> threads;
      for (Sleeper& sleeper : sleepers) {
        threads.emplace_back([&, request] {
          sleeper.AboutToBlock();
          EXPECT_EQ(annulus_request_wait(request, &sleeper == &sleepers[0] ? kForEver : -1), ANNULUS_OK);
          EXPECT_EQ(out, SumOfAll(n(), kCount, 0));
        });
      }
      for (const Sleeper& sleeper : sleepers) EXPECT_TRUE(sleeper.WaitUntilAsleep());
      released.Add();
    }
    EXPECT_EQ(annulus_request_wait(request, 0), ANNULUS_OK) << "the outcome stays";
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
  });
}

TEST_P(RequestsTest, FreeWaitsForTheRequest) {
  constexpr size_t kCount = 30'000;
  Tally released;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    const Numbers in = Contribution(rank, kCount, 0);
    Numbers out(kCount);
    annulus_request_t* request = nullptr;
    if (rank != 0) {
      ASSERT_TRUE(released.WaitFor(1));
    }
    ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
    Sleeper sleeper;
    const std::jthread releaser([&] {
      if (rank != 0) return;
      EXPECT_TRUE(sleeper.WaitUntilAsleep());
      released.Add();
    });
    sleeper.AboutToBlock();
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    EXPECT_EQ(out, SumOfAll(n(), kCount, 0));
  });
}

TEST_P(RequestsTest, BlockingCallRunsAfterQueuedOnes) {
  constexpr size_t kCount = 3000;
  constexpr int kQueued = 5;
  Tally released;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    // Each call sums what the one before it left in the same buffer, so any other order gives other numbers.
    Numbers numbers(kCount, rank + 1);
    int64_t expected = n() * (n() + 1) / 2;
    for (int i = 0; i < kQueued; ++i) expected *= n();
    if (rank != 0) {
      ASSERT_TRUE(released.WaitFor(1));
      for (int i = 0; i <= kQueued; ++i) {
        ASSERT_EQ(Sum(comm, numbers, &numbers), ANNULUS_OK);
      }
      EXPECT_EQ(numbers, Numbers(kCount, expected));
      return;
    }
    annulus_request_t* requests[kQueued];
    for (annulus_request_t*& request : requests) {
      ASSERT_EQ(SumAsync(comm, numbers, &numbers, &request), ANNULUS_OK);
    }
    {
      Sleeper sleeper;
      const std::jthread releaser([&] {
        EXPECT_TRUE(sleeper.WaitUntilAsleep());
        for (annulus_request_t* request : requests) EXPECT_EQ(annulus_request_test(request), ANNULUS_IN_PROGRESS);
        released.Add();
      });
      sleeper.AboutToBlock();
      EXPECT_EQ(Sum(comm, numbers, &numbers), ANNULUS_OK);
      for (annulus_request_t* request : requests) EXPECT_EQ(annulus_request_test(request), ANNULUS_OK);
    }
    EXPECT_EQ(numbers, Numbers(kCount, expected));
    for (annulus_request_t* request : requests) EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
  });
}

// Buffers that outlive the communicator which may be using them.
struct Buffers {
  Numbers in;
  Numbers out;
};

std::vector<Buffers> MakeBuffers(int rank) {
  std::vector<Buffers> buffers;
  int salt = 0;
  for (size_t count : {10, 200'000, 20, 200'000, 0, 200'000}) {
    buffers.push_back({Contribution(rank, count, ++salt), Numbers(count)});
  }
  return buffers;
}

void SubmitAll(annulus_comm_t* comm, std::vector<Buffers>* buffers) {
  for (Buffers& b : *buffers) {
    annulus_request_t* request = nullptr;  // The communicator frees it.
    EXPECT_EQ(SumAsync(comm, b.in, &b.out, &request), ANNULUS_OK);
  }
}

TEST_P(RequestsTest, DestroyIsBoundedWhenNothingQueuedCanFinish) {
  Tally submitted;
  Nanoseconds start = 0;
  std::vector<std::vector<Buffers>> buffers(n());
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    buffers[rank] = MakeBuffers(rank);
    if (rank != n() - 1) {  // The last one never enters.
      SubmitAll(comm, &buffers[rank]);
      submitted.Add();
    }
    ASSERT_TRUE(submitted.WaitFor(n() - 1));
    if (rank == 0) start = Now();
  });
  EXPECT_LT(Now() - start, kSoon);
}

TEST_P(RequestsTest, DestroyIsBoundedInTheMidstOfWork) {
  Tally submitted;
  Nanoseconds start = 0;
  std::vector<std::vector<Buffers>> buffers(n());
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    buffers[rank] = MakeBuffers(rank);
    SubmitAll(comm, &buffers[rank]);
    submitted.Add();
    ASSERT_TRUE(submitted.WaitFor(n()));  // Whoever submits after a peer has left is refused.
    if (rank == 0) start = Now();
  });
  EXPECT_LT(Now() - start, kSoon);
}

TEST_P(RequestsTest, DestroyFreesFinishedRequests) {
  std::vector<std::vector<Buffers>> buffers(n());
  Tally done;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    buffers[rank] = MakeBuffers(rank);
    SubmitAll(comm, &buffers[rank]);
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK) << "queued last, it ends last";
    for (size_t i = 0; i < buffers[rank].size(); ++i) {
      const Buffers& b = buffers[rank][i];
      EXPECT_EQ(b.out, SumOfAll(n(), b.in.size(), static_cast<int>(i) + 1));
    }
    done.Add();
    ASSERT_TRUE(done.WaitFor(n()));
  });
}

TEST_P(RequestsTest, DestroyFreesFailedRequests) {
  std::vector<std::vector<Buffers>> buffers(n());
  Tally submitted;
  Tally done;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    buffers[rank] = MakeBuffers(rank);
    if (rank == 0) {
      ASSERT_TRUE(submitted.WaitFor(n() - 1));
      EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK);
    } else {
      SubmitAll(comm, &buffers[rank]);
      submitted.Add();
    }
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_ABORTED);
    done.Add();
    ASSERT_TRUE(done.WaitFor(n()));
  });
}

INSTANTIATE_TEST_SUITE_P(Links, RequestsTest, OverLinks(2, 3), LinksName);

TEST(RequestsOfOneRankTest, FinishLikeAnyOther) {
  ClusterConfig config;
  config.nranks = 1;
  const Numbers in = Contribution(0, 1000, 1);
  Numbers out(in.size());  // Lent beyond the end of the function below.
  Cluster(config).Run([&](annulus_comm_t* comm, int) {
    annulus_request_t* request = nullptr;
    ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
    EXPECT_EQ(annulus_request_wait(request, kForEver), ANNULUS_OK);
    EXPECT_EQ(out, in);
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);  // Left to destroy, finished or not.
  });
}

}  // namespace
}  // namespace annulus
