// Splitting and duplicating communicators, over real links.

#include <annulus.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "tests/collectives/harness/cluster.h"

namespace annulus {
namespace {

int Get(annulus_comm_t* comm, annulus_status_t (*getter)(const annulus_comm_t*, int*)) {
  int value = -1;
  EXPECT_EQ(getter(comm, &value), ANNULUS_OK);
  return value;
}

int64_t Sum(annulus_comm_t* comm, int64_t value) {
  int64_t sum = -1;
  EXPECT_EQ(annulus_allreduce(comm, &value, &sum, 1, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK);
  return sum;
}

class SplitTest : public testing::TestWithParam<const char*> {
 protected:
  ClusterConfig Config(int nranks) const {
    ClusterConfig config;
    config.nranks = nranks;
    config.transport = GetParam();
    return config;
  }
};

TEST_P(SplitTest, ColoursFormCommunicatorsOrderedByKeyThenRank) {
  Cluster(Config(5)).Run([](annulus_comm_t* comm, int rank) {
    // Colour 0: ranks 0, 2, 4 in reverse; colour 1: ranks 1, 3 with equal keys.
    const int colour = rank % 2;
    annulus_comm_t* child = nullptr;
    ASSERT_EQ(annulus_comm_split(comm, colour, colour == 0 ? -rank : 7, &child), ANNULUS_OK) << LastMessage();
    EXPECT_EQ(Get(child, annulus_comm_size), colour == 0 ? 3 : 2);
    EXPECT_EQ(Get(child, annulus_comm_rank), colour == 0 ? (4 - rank) / 2 : rank / 2);
    EXPECT_EQ(Get(child, annulus_comm_local_size), Get(child, annulus_comm_size));
    EXPECT_EQ(Sum(child, 1 << rank), colour == 0 ? 0b10101 : 0b01010);
    // Both work side by side, and the child does without its parent.
    EXPECT_EQ(Sum(comm, 1), 5);
    EXPECT_EQ(Sum(child, 1), colour == 0 ? 3 : 2);
    EXPECT_EQ(annulus_comm_destroy(child), ANNULUS_OK);
    EXPECT_EQ(Sum(comm, 2), 10);
  });
}

TEST_P(SplitTest, LeavesTheLogLevelOfTheProcessAlone) {
  Cluster(Config(2)).Run([](annulus_comm_t* comm, int rank) {
    const LogLevel before = GetLogLevel();
    Sum(comm, 1);  // Both ranks, threads of one process, have looked.
    if (rank == 0) SetLogLevel(LogLevel::kError);
    annulus_comm_t* child = nullptr;
    EXPECT_EQ(annulus_comm_dup(comm, &child), ANNULUS_OK) << LastMessage();
    EXPECT_EQ(GetLogLevel(), LogLevel::kError);
    EXPECT_EQ(annulus_comm_destroy(child), ANNULUS_OK);
    Sum(comm, 1);
    if (rank == 0) SetLogLevel(before);
  });
}

TEST_P(SplitTest, ANegativeColourTakesNoPartAndOneRankAloneIsACommunicator) {
  Cluster(Config(3)).Run([](annulus_comm_t* comm, int rank) {
    annulus_comm_t* child = comm;
    ASSERT_EQ(annulus_comm_split(comm, rank == 2 ? 4 : -1, 0, &child), ANNULUS_OK);
    if (rank == 2) {
      EXPECT_EQ(Get(child, annulus_comm_size), 1);
      EXPECT_EQ(Sum(child, 9), 9);
      annulus_comm_destroy(child);
    } else {
      EXPECT_EQ(child, nullptr);
    }
    EXPECT_EQ(Sum(comm, 1), 3);
  });
}

TEST_P(SplitTest, ADuplicateWorksAtTheSameTimeAsItsParentAndAfterIt) {
  static constexpr int kRanks = 3;
  const Cluster cluster(Config(kRanks));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&cluster, rank] {
      const UserConfig config = cluster.Config(rank);
      annulus_comm_t* comm = nullptr;
      ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
      annulus_comm_t* twin = nullptr;
      ASSERT_EQ(annulus_comm_dup(comm, &twin), ANNULUS_OK) << LastMessage();
      EXPECT_EQ(Get(twin, annulus_comm_rank), rank);
      std::thread other([twin] {
        for (int i = 0; i < 50; ++i) EXPECT_EQ(Sum(twin, i), kRanks * i);
      });
      for (int i = 0; i < 50; ++i) EXPECT_EQ(Sum(comm, -i), -kRanks * i);
      other.join();
      EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
      EXPECT_EQ(Sum(twin, 1), kRanks);
      EXPECT_EQ(annulus_comm_destroy(twin), ANNULUS_OK);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_P(SplitTest, SplitsOfSplits) {
  Cluster(Config(4)).Run([](annulus_comm_t* comm, int rank) {
    annulus_comm_t* half = nullptr;
    ASSERT_EQ(annulus_comm_split(comm, rank / 2, rank, &half), ANNULUS_OK) << LastMessage();
    annulus_comm_t* alone = nullptr;
    ASSERT_EQ(annulus_comm_split(half, rank % 2, 0, &alone), ANNULUS_OK) << LastMessage();
    EXPECT_EQ(Get(alone, annulus_comm_size), 1);
    EXPECT_EQ(Sum(half, rank), rank < 2 ? 1 : 5);
    annulus_comm_destroy(alone);
    annulus_comm_destroy(half);
  });
}

TEST_P(SplitTest, AbortOfTheParentEndsASplitThatWaitsForSomeone) {
  ClusterConfig config = Config(3);
  config.timeout_ms = 5000;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    if (rank == 1) {
      // What a split exchanges; the others then wait for this rank to meet them.
      const std::vector<int32_t> own(16);
      std::vector<int32_t> all(3 * 16);
      for (size_t count : {2, 16})
        ASSERT_EQ(annulus_allgather(comm, own.data(), all.data(), count, ANNULUS_INT32), ANNULUS_OK);
      EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK);
      return;
    }
    annulus_comm_t* child = nullptr;
    EXPECT_EQ(annulus_comm_split(comm, 0, 0, &child), ANNULUS_ABORTED) << LastMessage();
    EXPECT_NE(LastMessage().find("rank 1"), std::string::npos);
  });
}

INSTANTIATE_TEST_SUITE_P(Links, SplitTest, testing::Values("shm", "tcp"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

TEST(SplitFailureTest, AFailedParentSaysWhy) {
  ClusterConfig config;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    annulus_comm_abort(comm, nullptr);
    annulus_comm_t* child = nullptr;
    EXPECT_EQ(annulus_comm_split(comm, 0, rank, &child), ANNULUS_ABORTED);
    EXPECT_EQ(child, nullptr);
    EXPECT_NE(LastMessage().find("aborted the communicator"), std::string::npos) << LastMessage();
    EXPECT_EQ(annulus_comm_split(nullptr, 0, rank, &child), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_comm_dup(comm, nullptr), ANNULUS_INVALID_ARGUMENT);
  });
}

}  // namespace
}  // namespace annulus
