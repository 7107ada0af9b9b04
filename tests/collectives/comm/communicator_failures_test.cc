// Ranks that abort or leave while work is queued, and calls that are refused: every piece of work gets one verdict,
// told in all parts of annulus_error_t.

#include <annulus.h>
#include <gtest/gtest.h>

#include <thread>
#include <tuple>

#include "tests/collectives/comm/failure_scene.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

enum class Cause { kAbort, kLeave };

class QueuedWorkTest : public testing::TestWithParam<std::tuple<std::string, int, Cause>> {};

// Queues work that cannot finish, and a blocking call behind it; all of it must end with `verdict`.
void FailWithQueuedWork(annulus_comm_t* comm, int rank, annulus_status_t verdict, Tally* queued) {
  constexpr int kQueued = 5;
  std::vector<Numbers> outs(kQueued + 1, Numbers(kCount));
  const Numbers in = Contribution(rank, kCount, 1);
  annulus_request_t* requests[kQueued];
  for (int i = 0; i < kQueued; ++i) {
    ASSERT_EQ(SumAsync(comm, in, &outs[i], &requests[i]), ANNULUS_OK);
  }
  {
    Sleeper sleeper;
    const std::jthread watcher([&] {
      EXPECT_TRUE(sleeper.WaitUntilAsleep());
      for (annulus_request_t* request : requests) EXPECT_EQ(annulus_request_test(request), ANNULUS_IN_PROGRESS);
      queued->Add();
    });
    sleeper.AboutToBlock();
    EXPECT_EQ(Sum(comm, in, &outs[kQueued]), verdict);
  }
  ExpectNamesTheCall(LastError(comm));
  for (annulus_request_t* request : requests) EXPECT_EQ(annulus_request_wait(request, -1), verdict);
  ExpectRefusals(comm, verdict);
  ExpectNamesTheCall(LastError(comm));
  for (int i = 0; i < kQueued; i += 2) EXPECT_EQ(annulus_request_free(requests[i]), ANNULUS_OK);  // Destroy the others.
}

TEST_P(QueuedWorkTest, EndsWithTheVerdictOfAll) {
  const auto& [transport, culprit_, cause] = GetParam();
  const int culprit = culprit_;
  const bool aborts = cause == Cause::kAbort;
  const annulus_status_t verdict = aborts ? ANNULUS_ABORTED : ANNULUS_PEER_LOST;
  constexpr int kRanks = 3;
  Tally queued;
  Tally called;
  Tally ended;
  Nanoseconds failed_at = 0;
  std::vector<ErrorCopy> errors(kRanks);
  Cluster(ConfigOf({transport, kRanks, culprit, culprit})).Run([&](annulus_comm_t* comm, int rank) {
    CallOnce(comm, rank, kRanks, &called);
    if (rank == culprit) {
      ASSERT_TRUE(queued.WaitFor(kRanks - 1));
      failed_at = Now();
      if (!aborts) return;
      EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK);
      ExpectRefusals(comm, verdict);
      ExpectNamesNoCall(LastError(comm));
    } else {
      FailWithQueuedWork(comm, rank, verdict, &queued);
    }
    errors[rank] = LastError(comm);
    ended.Add();
    ASSERT_TRUE(ended.WaitFor(aborts ? kRanks : kRanks - 1));
  });
  EXPECT_LT(Now() - failed_at, kSoon);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == culprit && !aborts) continue;
    SCOPED_TRACE(testing::Message() << "at rank " << rank << ": " << errors[rank].message);
    EXPECT_EQ(errors[rank].status, verdict);
    EXPECT_EQ(errors[rank].rank, culprit);
    if (aborts) ExpectAborted(errors[rank], culprit);
    if (aborts || culprit != 0) {
      EXPECT_EQ(errors[rank].message, errors[kRanks - 1 - culprit].message);
    }
    EXPECT_NE(errors[rank].message.find("rank " + std::to_string(culprit)), std::string::npos);
    EXPECT_NE(errors[rank].advice, "");
  }
}

std::string QueuedWorkName(const testing::TestParamInfo<QueuedWorkTest::ParamType>& info) {
  const auto& [transport, culprit, cause] = info.param;
  return transport + "_rank" + std::to_string(culprit) + (cause == Cause::kAbort ? "_aborts" : "_leaves");
}

INSTANTIATE_TEST_SUITE_P(Causes, QueuedWorkTest,
                         testing::Combine(testing::Values("shm", "tcp"), testing::Values(0, 2),
                                          testing::Values(Cause::kAbort, Cause::kLeave)),
                         QueuedWorkName);

class DestroyTest : public testing::TestWithParam<Scene> {};

// The one that destroys has work pending itself, and cannot finish it: `absent` enters only after it has gone.
TEST_P(DestroyTest, WithWorkPendingIsAPeerLostToTheOthers) {
  const Scene scene = GetParam();
  const Cluster cluster(ConfigOf(scene));
  constexpr int kQueued = 3;
  Tally queued;
  Tally gone;
  Tally called;
  Tally ended;
  ForEachRank(scene.nranks, [&](int rank) {
    const UserConfig config = cluster.Config(rank);
    annulus_comm_t* comm = nullptr;
    ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
    CallOnce(comm, rank, scene.nranks, &called);
    const Numbers in = Contribution(rank, kCount, 1);
    std::vector<Numbers> outs(kQueued, Numbers(kCount));
    std::vector<annulus_request_t*> requests;
    if (rank == scene.absent) {
      EXPECT_TRUE(gone.WaitFor(1));
      EXPECT_EQ(Sum(comm, in, &outs[0]), ANNULUS_PEER_LOST);
    } else {
      for (Numbers& out : outs) EXPECT_EQ(SumAsync(comm, in, &out, &requests.emplace_back()), ANNULUS_OK);
      queued.Add();
      EXPECT_TRUE(queued.WaitFor(scene.nranks - 1));
    }
    if (rank == scene.culprit) {
      const Nanoseconds start = Now();
      EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
      EXPECT_LT(Now() - start, kSoon);
      gone.Add();
      return;
    }
    for (annulus_request_t* request : requests) EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_PEER_LOST);
    const ErrorCopy error = LastError(comm);
    EXPECT_EQ(error.status, ANNULUS_PEER_LOST);
    EXPECT_EQ(error.rank, scene.culprit) << error.message;
    if (rank == scene.absent) {
      ExpectNamesTheCallOrNone(error);
    } else {
      ExpectNamesTheCall(error);
    }
    ExpectRefusals(comm, ANNULUS_PEER_LOST);
    ended.Add();
    EXPECT_TRUE(ended.WaitFor(scene.nranks - 1));
    EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
  });
}

INSTANTIATE_TEST_SUITE_P(Scenes, DestroyTest,
                         testing::Values(Scene{"shm", 3, 0, 1}, Scene{"shm", 3, 1, 0}, Scene{"shm", 4, 2, 3},
                                         Scene{"tcp", 3, 0, 1}, Scene{"tcp", 3, 1, 0}, Scene{"tcp", 4, 2, 3}),
                         SceneName);

void ExpectRefused(annulus_comm_t* comm, int rank, const std::string& culprit) {
  const ErrorCopy error = LastError(comm);
  EXPECT_EQ(error.status, ANNULUS_INVALID_ARGUMENT);
  EXPECT_EQ(error.rank, rank);
  EXPECT_EQ(error.peer, -1);
  EXPECT_EQ(error.os_errno, 0);
  EXPECT_NE(error.message.find(culprit), std::string::npos) << error.message;
  EXPECT_NE(error.advice, "");
  EXPECT_EQ(error.sequence, 0u) << "it has no number";
  EXPECT_NE(error.collective, "");
}

TEST(RefusedCallTest, IsToldAtThatRankOnlyAndTakesNoNumber) {
  constexpr int kRanks = 2;
  Tally called;
  Tally ended;
  Cluster(ConfigOf({"auto", kRanks, 0, 1})).Run([&](annulus_comm_t* comm, int rank) {
    const ErrorCopy none = LastError(comm);
    EXPECT_EQ(none.status, ANNULUS_OK);
    EXPECT_EQ(none.rank, -1);
    EXPECT_EQ(none.peer, -1);
    EXPECT_EQ(none.message + none.advice, "");
    ExpectNamesNoCall(none);
    if (rank == 1) {
      int32_t value = 0;
      annulus_request_t* request = nullptr;
      EXPECT_EQ(annulus_allreduce(comm, nullptr, &value, 1, ANNULUS_INT32, ANNULUS_SUM), ANNULUS_INVALID_ARGUMENT);
      ExpectRefused(comm, rank, "sendbuf");
      EXPECT_EQ(annulus_broadcast_async(comm, &value, &value, 1, ANNULUS_INT32, kRanks, &request),
                ANNULUS_INVALID_ARGUMENT);
      EXPECT_EQ(request, nullptr);
      ExpectRefused(comm, rank, "root");
    }
    CallOnce(comm, rank, kRanks, &called);  // Were the refused calls numbered, the ranks would differ in it.
    EXPECT_EQ(LastError(comm).status, rank == 1 ? ANNULUS_INVALID_ARGUMENT : ANNULUS_OK);
    ended.Add();
    ASSERT_TRUE(ended.WaitFor(kRanks));
    if (rank == 0) {
      EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK);
    }
    const Numbers in(kCount);
    Numbers out(kCount);
    EXPECT_EQ(Sum(comm, in, &out), ANNULUS_ABORTED);
    ExpectAborted(LastError(comm), 0);
    ExpectNamesTheCallOrNone(LastError(comm));
    ended.Add();
    ASSERT_TRUE(ended.WaitFor(2 * kRanks));
  });
}

}  // namespace
}  // namespace annulus
