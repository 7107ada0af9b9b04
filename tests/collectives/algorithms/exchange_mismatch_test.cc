// Ranks that disagree about a call that goes through a tree, a gather or two levels: all fail long before the deadline,
// with what differs. Where both sides meet on a link, at once; else after a doubt (Driver::kFirstDoubt).

#include <annulus.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

// One rank's call; a count of 0 stands for a barrier.
struct Asked {
  size_t count = 8;
  annulus_type_t type = ANNULUS_FLOAT32;
  annulus_op_t op = ANNULUS_SUM;
};

struct Difference {
  const char* word;  // In the message.
  Asked asked;
};

constexpr Difference kDifferences[] = {
    {"count", {9, ANNULUS_FLOAT32, ANNULUS_SUM}},
    {"type", {8, ANNULUS_INT32, ANNULUS_SUM}},
    {"op", {8, ANNULUS_FLOAT32, ANNULUS_MAX}},
    {"barrier", {0, ANNULUS_FLOAT32, ANNULUS_SUM}},
};

// The number of ranks, and the one that differs.
class ExchangeMismatchTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(ExchangeMismatchTest, IsToldToAllLongBeforeTheDeadline) {
  const auto [nranks, odd] = GetParam();
  for (const Difference& difference : kDifferences) {
    SCOPED_TRACE(difference.word);
    ClusterConfig config;
    config.nranks = nranks;
    config.transport = "tcp";
    config.timeout_ms = 60'000;
    const Nanoseconds begin = Now();
    std::barrier joined(nranks);  // Else some might hear of it before they have joined.
    Cluster(config).Run([&, odd_rank = odd](annulus_comm_t* comm, int rank) {
      const Asked asked = rank == odd_rank ? difference.asked : Asked();
      const std::vector<float> in(16, 1);
      std::vector<float> out(16);
      joined.arrive_and_wait();
      const annulus_status_t status =
          asked.count == 0 ? annulus_barrier(comm)
                           : annulus_allreduce(comm, in.data(), out.data(), asked.count, asked.type, asked.op);
      EXPECT_EQ(status, ANNULUS_MISMATCH) << LastMessage(comm);
      EXPECT_NE(LastMessage(comm).find(difference.word), std::string::npos) << LastMessage(comm);
    });
    EXPECT_LT(Now() - begin, 30 * kSecond);
  }
}

// Two ways that use different links: ranks from `split` on take the other one.
struct Crossing {
  const char* name;
  int nranks;
  int hosts;
  int split;
  std::function<annulus_status_t(annulus_comm_t* comm, float* data)> one;
  std::function<annulus_status_t(annulus_comm_t* comm, float* data)> other;
};

annulus_status_t Allreduce(annulus_comm_t* comm, float* data, size_t count) {
  return annulus_allreduce(comm, data, data, count, ANNULUS_FLOAT32, ANNULUS_SUM);
}

constexpr size_t kLarge = 1 << 18;
const Crossing kCrossings[] = {
    {"small and large", 18, 0, 9, [](annulus_comm_t* comm, float* data) { return Allreduce(comm, data, 8); },
     [](annulus_comm_t* comm, float* data) { return Allreduce(comm, data, kLarge); }},
    {"tree and chain", 18, 0, 1, [](annulus_comm_t* comm, float* data) { return Allreduce(comm, data, 8); },
     [](annulus_comm_t* comm, float* data) { return annulus_broadcast(comm, data, data, kLarge, ANNULUS_FLOAT32, 0); }},
    {"two levels and ring", 4, 2, 2, [](annulus_comm_t* comm, float* data) { return Allreduce(comm, data, kLarge); },
     [](annulus_comm_t* comm, float* data) {
       return annulus_reduce_scatter(comm, data, data + kLarge, kLarge / 4, ANNULUS_FLOAT32, ANNULUS_SUM);
     }},
    {"two levels and gather", 6, 2, 3, [](annulus_comm_t* comm, float* data) { return Allreduce(comm, data, kLarge); },
     [](annulus_comm_t* comm, float*) { return annulus_barrier(comm); }},
};

class CrossingTest : public testing::TestWithParam<Crossing> {};

TEST_P(CrossingTest, IsToldToAllLongBeforeTheDeadline) {
  const Crossing& crossing = GetParam();
  for (const bool in_turn : {false, true}) {  // Whether hosts, dealt out in turn, are split or whole.
    if (in_turn && crossing.hosts == 0) continue;
    ClusterConfig config;
    config.nranks = crossing.nranks;
    config.hosts = crossing.hosts;
    config.transport = "tcp";
    config.timeout_ms = 60'000;
    std::barrier joined(crossing.nranks);
    const Nanoseconds begin = Now();
    Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
      std::vector<float> data(2 * kLarge, 1);
      const int side = in_turn ? rank % crossing.hosts : rank >= crossing.split;
      joined.arrive_and_wait();
      const annulus_status_t status = (side == 0 ? crossing.one : crossing.other)(comm, data.data());
      EXPECT_EQ(status, ANNULUS_MISMATCH) << LastMessage(comm);
    });
    EXPECT_LT(Now() - begin, 30 * kSecond);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CrossingTest, testing::ValuesIn(kCrossings), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

// Which rank it is makes no difference to what the ranks do with memory and threads.
auto OddRanks(std::vector<int> all) {
  if (kSanitized) all.resize(1);
  return testing::ValuesIn(all);
}

INSTANTIATE_TEST_SUITE_P(Gather, ExchangeMismatchTest, testing::Combine(testing::Values(3, 5), OddRanks({1, 0, 2})));
INSTANTIATE_TEST_SUITE_P(Tree, ExchangeMismatchTest, testing::Combine(testing::Values(18), OddRanks({4, 0, 17})));

}  // namespace
}  // namespace annulus
