// annulus_comm_abort from any rank and any thread, with calls in flight that cannot finish: all ranks end with it.

#include <annulus.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/collectives/comm/failure_scene.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

class AbortTest : public testing::TestWithParam<Scene> {};

TEST_P(AbortTest, EndsBlockingCallsThatCannotFinish) {
  const Scene scene = GetParam();
  std::vector<Sleeper> sleepers(scene.nranks);
  Tally called;
  Tally ended;
  Cluster(ConfigOf(scene)).Run([&](annulus_comm_t* comm, int rank) {
    CallOnce(comm, rank, scene.nranks, &called);
    const Numbers in = Contribution(rank, kCount, 1);
    Numbers out(kCount);
    Nanoseconds aborted_at = kNoDeadline;
    std::jthread aborter([&] {
      if (rank != scene.culprit) return;
      for (int r = 0; r < scene.nranks; ++r) {
        if (r != scene.absent) {
          ASSERT_TRUE(sleepers[r].WaitUntilAsleep());
        }
      }
      aborted_at = Now();
      EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK);
    });
    if (rank != scene.absent) {
      sleepers[rank].AboutToBlock();
      EXPECT_EQ(Sum(comm, in, &out), ANNULUS_ABORTED);
      ExpectNamesTheCall(LastError(comm));
      ended.Add();
    }
    aborter.join();
    ASSERT_TRUE(ended.WaitFor(scene.nranks - 1));
    EXPECT_LT(Now() - aborted_at, kSoon);
    ExpectRefusals(comm, ANNULUS_ABORTED);
    ExpectAborted(LastError(comm), scene.culprit);
    if (rank == scene.absent) ExpectNamesTheCallOrNone(LastError(comm));
    if (rank == scene.absent && rank == scene.culprit) ExpectNamesNoCall(LastError(comm));
    ended.Add();
    ASSERT_TRUE(ended.WaitFor(2 * scene.nranks - 1));
  });
}

TEST_P(AbortTest, EndsAsynchronousCallsThatCannotFinish) {
  const Scene scene = GetParam();
  Tally submitted;
  Tally called;
  Tally ended;
  Cluster(ConfigOf(scene)).Run([&](annulus_comm_t* comm, int rank) {
    CallOnce(comm, rank, scene.nranks, &called);
    const Numbers in = Contribution(rank, kCount, 1);
    Numbers out(kCount);
    annulus_request_t* request = nullptr;
    if (rank != scene.absent) {
      ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
      EXPECT_EQ(annulus_request_wait(request, 1), ANNULUS_IN_PROGRESS);
      submitted.Add();
    }
    ASSERT_TRUE(submitted.WaitFor(scene.nranks - 1));
    const Nanoseconds aborted_at = Now();
    if (rank == scene.culprit) {
      const std::jthread aborter([&] { EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK); });
    }
    if (rank != scene.absent) {
      EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_ABORTED);
      EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
      ExpectNamesTheCall(LastError(comm));
      ended.Add();
    }
    ASSERT_TRUE(ended.WaitFor(scene.nranks - 1));
    EXPECT_LT(Now() - aborted_at, kSoon);
    ExpectRefusals(comm, ANNULUS_ABORTED);
    ExpectAborted(LastError(comm), scene.culprit);
    ended.Add();
    ASSERT_TRUE(ended.WaitFor(2 * scene.nranks - 1));
  });
}

INSTANTIATE_TEST_SUITE_P(Scenes, AbortTest,
                         testing::Values(Scene{"shm", 2, 0, 1}, Scene{"shm", 2, 1, 0}, Scene{"shm", 3, 0, 2},
                                         Scene{"shm", 3, 2, 0}, Scene{"shm", 4, 1, 1}, Scene{"tcp", 2, 0, 1},
                                         Scene{"tcp", 2, 1, 0}, Scene{"tcp", 3, 0, 2}, Scene{"tcp", 3, 2, 0},
                                         Scene{"tcp", 4, 0, 0}),
                         SceneName);

TEST(AbortOfOneRankTest, RefusesFurtherCalls) {
  ClusterConfig config;
  config.nranks = 1;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    Tally called;
    CallOnce(comm, rank, 1, &called);
    EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK);
    EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK) << "again changes nothing";
    ExpectRefusals(comm, ANNULUS_ABORTED);
    ExpectAborted(LastError(comm), 0);
    ExpectNamesNoCall(LastError(comm));
  });
}

TEST(AbortOfOneRankTest, EndsTheWorkOfAnotherThread) {
  ClusterConfig config;
  config.nranks = 1;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    Tally called;
    std::jthread worker([&] {
      const Numbers in = Contribution(rank, kCount, 0);
      Numbers out(kCount);
      annulus_status_t status = ANNULUS_OK;
      const Deadline deadline = DeadlineAfter(kPatience);
      while (status == ANNULUS_OK && Now() < deadline) {
        status = Sum(comm, in, &out);
        called.Add();
      }
      EXPECT_EQ(status, ANNULUS_ABORTED);
    });
    ASSERT_TRUE(called.WaitFor(3));
    EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK);
    worker.join();
    ExpectAborted(LastError(comm), 0);
  });
}

}  // namespace
}  // namespace annulus
