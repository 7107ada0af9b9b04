// Calls whose owner only asks, again and again, whether they are done: what a wait finds, such a loop finds too.

#include <annulus.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

class PolledCallsTest : public testing::TestWithParam<const char*> {
 protected:
  static ClusterConfig Config(int64_t timeout_ms) {
    ClusterConfig config;
    config.transport = GetParam();
    config.timeout_ms = timeout_ms;
    return config;
  }
};

// Asks until the request has ended or, which is a failure, for kSoon.
annulus_status_t Poll(annulus_request_t* request) {
  annulus_status_t status = ANNULUS_IN_PROGRESS;
  for (const Deadline deadline = DeadlineAfter(kSoon); status == ANNULUS_IN_PROGRESS && Now() < deadline;) {
    status = annulus_request_test(request);
  }
  return status;
}

using Start = std::function<annulus_status_t(annulus_comm_t*, Numbers*, annulus_request_t**)>;

// Starts it on rank 0, while rank 1 makes no call.
void ExpectTimeout(const ClusterConfig& config, const Start& start) {
  Tally ended;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    Numbers numbers(1000);
    if (rank == 0) {
      annulus_request_t* request = nullptr;
      EXPECT_EQ(start(comm, &numbers, &request), ANNULUS_OK);
      EXPECT_EQ(Poll(request), ANNULUS_TIMEOUT);
      if (annulus_request_test(request) == ANNULUS_IN_PROGRESS) annulus_comm_abort(comm, nullptr);
      EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    }
    ended.Add();
    EXPECT_TRUE(ended.WaitFor(2));
  });
}

TEST_P(PolledCallsTest, ACollectiveEndsAtItsDeadline) {
  ExpectTimeout(Config(300), [](annulus_comm_t* comm, Numbers* numbers, annulus_request_t** request) {
    return SumAsync(comm, *numbers, numbers, request);
  });
}

TEST_P(PolledCallsTest, AReceiveEndsAtItsDeadline) {
  ExpectTimeout(Config(300), [](annulus_comm_t* comm, Numbers* numbers, annulus_request_t** request) {
    return annulus_recv_async(comm, numbers->data(), numbers->size(), ANNULUS_INT64, 1, request);
  });
}

// Each rank waits for the other's data; only a question in between tells that they differ about the root.
TEST_P(PolledCallsTest, RanksThatMakeDifferentCallsAreToldBeforeTheDeadline) {
  Tally ended;
  Cluster(Config(kFarTimeoutMs)).Run([&](annulus_comm_t* comm, int rank) {
    Numbers numbers(1);
    annulus_request_t* request = nullptr;
    EXPECT_EQ(annulus_broadcast_async(comm, numbers.data(), numbers.data(), 1, ANNULUS_INT64, 1 - rank, &request),
              ANNULUS_OK);
    EXPECT_EQ(Poll(request), ANNULUS_MISMATCH);
    if (annulus_request_test(request) == ANNULUS_IN_PROGRESS) annulus_comm_abort(comm, nullptr);
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    ended.Add();
    EXPECT_TRUE(ended.WaitFor(2));
  });
}

INSTANTIATE_TEST_SUITE_P(Links, PolledCallsTest, testing::Values("shm", "tcp"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

}  // namespace
}  // namespace annulus
