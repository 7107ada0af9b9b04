// Priorities: queued calls overtake alike on all ranks, whatever each has queued when rank 0 chooses.

#include <annulus.h>
#include <gtest/gtest.h>

#include <latch>
#include <random>
#include <string>
#include <vector>

#include "tests/collectives/harness/cluster.h"

namespace annulus {
namespace {

ClusterConfig Config(int nranks, const char* transport) {
  ClusterConfig config;
  config.nranks = nranks;
  config.transport = transport;
  config.priorities = 1;
  return config;
}

class PrioritiesTest : public testing::TestWithParam<const char*> {};

TEST_P(PrioritiesTest, TheLastQueuedMayOvertakeAllThatWait) {
  std::latch all_queued(1);
  Cluster(Config(2, GetParam())).Run([&all_queued](annulus_comm_t* comm, int rank) {
    // Doubling and squaring do not commute, so the result tells the order.
    int64_t value = 3;
    std::vector<annulus_request_t*> requests;
    const auto queue = [&](annulus_op_t op, int priority) {
      Calls call;
      call.Allreduce(&value, &value, 1, ANNULUS_INT64, op).priority = priority;
      requests.push_back(nullptr);
      ASSERT_EQ(call.Submit(comm, &requests.back()), ANNULUS_OK);
    };
    // Rank 0 has the first one under way and all others queued before rank 1 joins in.
    if (rank == 1) all_queued.wait();
    queue(ANNULUS_SUM, 0);
    queue(ANNULUS_SUM, 0);
    queue(ANNULUS_SUM, 1);
    queue(ANNULUS_PROD, 2);
    if (rank == 0) all_queued.count_down();
    for (annulus_request_t* request : requests) {
      EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
      annulus_request_free(request);
    }
    // Rank 0 may have chosen the square at once, or the first doubling before the others were queued; nothing else.
    const int64_t first_begun = ((3 * 2) * (3 * 2)) * 2 * 2;
    const int64_t square_first = (3 * 3) * 2 * 2 * 2;
    EXPECT_TRUE(value == first_begun || value == square_first) << value;
  });
}

TEST_P(PrioritiesTest, AllRanksTakeTheSameOrderUnderRandomPriorities) {
  constexpr int kRanks = 3;
  std::vector<std::vector<int>> results(kRanks);
  Cluster(Config(kRanks, GetParam())).Run([&results](annulus_comm_t* comm, int rank) {
    std::mt19937 random(7);
    std::vector<int> values(200);
    int sum = 0;
    std::vector<annulus_request_t*> requests(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<int>(i) + rank;
      Calls call;
      call.Allreduce(&values[i], &values[i], 1, ANNULUS_INT32, ANNULUS_SUM).priority = static_cast<int>(random() % 4);
      ASSERT_EQ(call.Submit(comm, &requests[i]), ANNULUS_OK);
      // Blocking calls take their turn.
      if (i % 50 == 49) {
        ASSERT_EQ(annulus_allreduce(comm, &rank, &sum, 1, ANNULUS_INT32, ANNULUS_SUM), ANNULUS_OK);
        ASSERT_EQ(sum, 3);
      }
    }
    for (annulus_request_t* request : requests) {
      ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK) << LastMessage(comm);
      annulus_request_free(request);
    }
    results[rank] = values;
  });
  for (size_t i = 0; i < results[0].size(); ++i) {
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(results[rank][i], 3 * static_cast<int>(i) + 3);
  }
}

INSTANTIATE_TEST_SUITE_P(Links, PrioritiesTest, testing::Values("shm", "tcp"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

TEST(PrioritiesFailureTest, ARankThatLeavesIsNamed) {
  ClusterConfig config = Config(2, "shm");
  config.timeout_ms = 400;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    int value = 1;
    annulus_request_t* request = nullptr;
    if (rank == 1) return;
    ASSERT_EQ(annulus_allreduce_async(comm, &value, &value, 1, ANNULUS_INT32, ANNULUS_SUM, &request), ANNULUS_OK);
    const annulus_status_t status = annulus_request_wait(request, -1);
    EXPECT_TRUE(status == ANNULUS_PEER_LOST || status == ANNULUS_TIMEOUT) << status;
    EXPECT_NE(LastMessage(comm).find("rank 1"), std::string::npos) << LastMessage(comm);
    annulus_request_free(request);
  });
}

TEST(PrioritiesFailureTest, WithoutTheSettingTheyAreRefused) {
  Cluster(ClusterConfig()).Run([](annulus_comm_t* comm, int) {
    Calls call;
    call.Add(ANNULUS_CALL_BARRIER, nullptr, nullptr, 0, ANNULUS_INT32).priority = 1;
    annulus_request_t* request = nullptr;
    EXPECT_EQ(call.Submit(comm, &request), ANNULUS_INVALID_ARGUMENT);
    EXPECT_NE(LastMessage(comm).find("ANNULUS_PRIORITIES"), std::string::npos) << LastMessage(comm);
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
}

}  // namespace
}  // namespace annulus
