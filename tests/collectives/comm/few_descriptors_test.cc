// A communicator that is made where few file descriptors are left: whatever lacks one, the error names the rank whose
// process it is, and the limit.
#include <annulus.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/base/descriptor_limit.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kConnectTimeoutMs = 500;  // For the rank that waits for the other.
constexpr rlim_t kMost = 24;                // More than two ranks take, reactors and links included.

// What came of one rank's attempt.
struct Attempt {
  annulus_status_t status = ANNULUS_OK;
  int rank = -1;
  std::string message;
};

// `status` of this thread's call, with what the library says of it.
Attempt AttemptOf(annulus_status_t status) {
  if (status == ANNULUS_OK) return {};
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  EXPECT_EQ(annulus_last_error(&error), ANNULUS_OK);
  return {error.status, error.rank, error.message};
}

void ExpectNamed(const Attempt& attempt, int rank) {
  EXPECT_EQ(attempt.status, ANNULUS_SYSTEM_ERROR) << attempt.message;
  EXPECT_EQ(attempt.rank, rank) << attempt.message;
  const std::string named = "rank " + std::to_string(rank) + " has no file descriptor left for ";
  EXPECT_NE(attempt.message.find(named), std::string::npos) << attempt.message;
  EXPECT_NE(attempt.message.find("ulimit -n, is"), std::string::npos) << attempt.message;
}

class FewDescriptorsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "the sanitizer of undefined behaviour needs descriptors to look at memory";
#endif
  }

  static ClusterConfig Ranks(int nranks) {
    ClusterConfig config;
    config.nranks = nranks;
    config.transport = GetParam();
    return config;
  }

  // Makes a communicator on each rank while the process may open `most` more descriptors.
  static std::vector<Attempt> Make(rlim_t most) {
    const Cluster cluster(Ranks(kRanks));
    std::vector<UserConfig> given;
    for (int rank = 0; rank < kRanks; ++rank) {
      given.push_back(cluster.Config(rank));
      given.back().connect_timeout_ms = kConnectTimeoutMs;
    }
    std::vector<Attempt> attempts(kRanks);
    const DescriptorLimit few(DescriptorLimit::Next() + most);
    ForEachRank(kRanks, [&](int rank) {
      annulus_comm_t* comm = nullptr;
      attempts[rank] = AttemptOf(annulus_comm_create(&given[rank], &comm));
      annulus_comm_destroy(comm);
    });
    return attempts;
  }
};

TEST_P(FewDescriptorsTest, WhateverLacksOneTheErrorNamesTheRank) {
  for (rlim_t most = 0; most < kMost; ++most) {
    SCOPED_TRACE(most);
    for (const Attempt& attempt : Make(most)) {
      EXPECT_NE(attempt.status, ANNULUS_INTERNAL) << attempt.message;
      EXPECT_NE(attempt.status, ANNULUS_UNSUPPORTED) << attempt.message;  // The machine lacks nothing.
      if (attempt.status == ANNULUS_SYSTEM_ERROR) ExpectNamed(attempt, attempt.rank);
    }
  }
  const std::vector<Attempt> with_none = Make(0);
  for (int rank = 0; rank < kRanks; ++rank) ExpectNamed(with_none[rank], rank);
}

TEST_P(FewDescriptorsTest, ADuplicateNamesTheRankThatListens) {
  const Cluster cluster(Ranks(kRanks));
  std::vector<annulus_comm_t*> parents(kRanks);
  ForEachRank(kRanks, [&](int rank) {
    const UserConfig given = cluster.Config(rank);
    EXPECT_EQ(annulus_comm_create(&given, &parents[rank]), ANNULUS_OK) << LastMessage();
    EXPECT_EQ(annulus_barrier(parents[rank]), ANNULUS_OK);
  });
  std::vector<Attempt> attempts(kRanks);
  {
    const DescriptorLimit none(DescriptorLimit::Next());
    ForEachRank(kRanks, [&](int rank) {
      annulus_comm_t* child = nullptr;
      attempts[rank] = AttemptOf(annulus_comm_dup(parents[rank], &child));
    });
  }
  ExpectNamed(attempts[0], 0);
  EXPECT_EQ(attempts[1].status, ANNULUS_SYSTEM_ERROR) << attempts[1].message;
  EXPECT_EQ(attempts[1].message, "rank 0 could not reserve a port for the new communicator");
  ForEachRank(kRanks, [&](int rank) { EXPECT_EQ(annulus_comm_destroy(parents[rank]), ANNULUS_OK); });
}

TEST_P(FewDescriptorsTest, ARankThatPublishesItsAddressNamesItself) {
  const Cluster cluster(Ranks(kRanks));
  UserConfig given = cluster.Config(0);
  given.rendezvous = nullptr;
  given.listening = [](void*, const char*) -> int32_t { return 0; };
  annulus_comm_t* comm = nullptr;
  const DescriptorLimit none(DescriptorLimit::Next());
  ExpectNamed(AttemptOf(annulus_comm_create(&given, &comm)), 0);
}

INSTANTIATE_TEST_SUITE_P(Transports, FewDescriptorsTest, testing::Values("tcp", "shm"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace annulus
