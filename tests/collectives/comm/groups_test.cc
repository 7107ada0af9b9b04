// Groups through the C API, over real links: bit for bit the results of separate calls, whatever is in the group; and
// what they refuse.

#include <annulus.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/links_fixture.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

struct Item {
  Call call;
  bool in_place = false;
};

// The calls of a group, as all ranks make them.
std::vector<Item> MakeItems(unsigned seed, bool one_class) {
  std::mt19937 random(seed);
  const DataType types[] = {DataType::kFloat32, DataType::kBFloat16, DataType::kInt32};
  const ReduceOp ops[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax};
  std::vector<Item> items(1 + random() % 40);
  for (Item& item : items) {
    item.call.kind = CollectiveKind::kAllreduce;
    item.call.type = one_class ? DataType::kFloat32 : types[random() % 3];
    item.call.op = one_class ? ReduceOp::kSum : ops[random() % 3];
    const size_t sizes[] = {0, 1, 3, 64, 1000, 5000, 70000};
    item.call.count = sizes[random() % (seed % 2 == 0 ? 5 : 7)];
    item.in_place = random() % 2 == 0;
  }
  return items;
}

Bytes Expected(const Item& item, const ClusterConfig& config, uint64_t seed) {
  const int nranks = config.nranks;
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < nranks; ++rank) inputs.push_back(MakeInput(item.call.type, item.call.count, rank, seed));
  return ExpectedOn(GridOf(config), item.call, inputs, 0);
}

void RunGroup(annulus_comm_t* comm, const std::vector<Item>& items, int rank, const ClusterConfig& config) {
  std::vector<Bytes> inputs;
  std::vector<Bytes> outputs;
  for (size_t i = 0; i < items.size(); ++i) {
    inputs.push_back(MakeInput(items[i].call.type, items[i].call.count, rank, i));
    outputs.emplace_back(inputs[i].size());
  }
  Calls calls;
  for (size_t i = 0; i < items.size(); ++i) {
    const Call& call = items[i].call;
    std::byte* out = items[i].in_place ? inputs[i].data() : outputs[i].data();
    calls.Allreduce(inputs[i].data(), out, call.count, static_cast<annulus_type_t>(call.type),
                    static_cast<annulus_op_t>(call.op));
  }
  EXPECT_EQ(calls.Do(comm), ANNULUS_OK);
  for (size_t i = 0; i < items.size(); ++i) {
    ASSERT_TRUE(SameBits(items[i].in_place ? inputs[i] : outputs[i], Expected(items[i], config, i))) << "tensor " << i;
  }
}

constexpr unsigned kSeeds = kSanitized ? 4 : 12;  // Of a third, all calls are of one class.

class GroupsTest : public LinksTest {};

TEST_P(GroupsTest, ResultsHaveTheBitsOfSeparateCalls) {
  for (const bool small_slices : {false, true}) {
    ClusterConfig config = this->config();
    if (small_slices) config.slice_bytes = 1088;
    if (small_slices) config.small_bytes = 0;
    Cluster(config).Run([&config](annulus_comm_t* comm, int rank) {
      for (unsigned seed = 0; seed < kSeeds; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        RunGroup(comm, MakeItems(seed, seed % 3 == 0), rank, config);
        if (HasFatalFailure()) return;
      }
    });
  }
}

TEST(GroupsOnHostsTest, ResultsHaveTheBitsOfSeparateCallsWhereLargeOnesGoInTwoLevels) {
  ClusterConfig config;
  config.nranks = 4;
  config.hosts = 2;
  Cluster(config).Run([&config](annulus_comm_t* comm, int rank) {
    for (unsigned seed = 0; seed < kSeeds; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      RunGroup(comm, MakeItems(seed, seed % 3 == 0), rank, config);
      if (HasFatalFailure()) return;
    }
  });
}

// So many ranks add small allreduces in the tree's order, but not those of a group: neither the only one of its type
// and operation, nor those that depend on each other and so cannot be combined.
TEST(GroupsOfManyRanksTest, AllreducesKeepTheOrderOfTheRingHoweverTheyAreGrouped) {
  ClusterConfig config;
  config.nranks = 17;
  config.transport = "shm";
  Cluster(config).Run([&config](annulus_comm_t* comm, int rank) {
    for (const size_t count : {1, 100, 1000}) {
      Item item;
      item.call.kind = CollectiveKind::kAllreduce;
      item.call.type = DataType::kFloat32;
      item.call.op = ReduceOp::kSum;
      item.call.count = count;
      Item other = item;
      other.call.op = ReduceOp::kMax;
      RunGroup(comm, {item, other}, rank, config);
      RunGroup(comm, {item, item}, rank, config);
      // The second call reads what the first one writes.
      const Bytes input = MakeInput(item.call.type, count, rank, 0);
      Bytes first(input.size());
      Bytes second(input.size());
      annulus_request_t* all = nullptr;
      Calls calls;
      for (const auto& [in, out] : {std::pair{input.data(), first.data()}, std::pair{&*first.cbegin(), second.data()}})
        calls.Allreduce(in, out, count, ANNULUS_FLOAT32, ANNULUS_SUM);
      ASSERT_EQ(calls.Submit(comm, &all), ANNULUS_OK);
      EXPECT_EQ(annulus_request_wait(all, -1), ANNULUS_OK);
      EXPECT_EQ(annulus_request_free(all), ANNULUS_OK);
      EXPECT_EQ(first, Expected(item, config, 0)) << "count " << count;
    }
  });
}

TEST_P(GroupsTest, OtherCallsAndMessagesMayBeInAGroup) {
  const ClusterConfig config = this->config();
  Cluster(config).Run([&config](annulus_comm_t* comm, int rank) {
    const int n = config.nranks;
    std::vector<int> sums(3, rank);
    int root = rank == 0 ? 77 : 0;
    std::vector<int> ranks(n, -1);
    int sent = rank;
    int arrived = -1;
    annulus_request_t* all = nullptr;
    Calls calls;
    for (int& sum : sums) calls.Allreduce(&sum, &sum, 1, ANNULUS_INT32, ANNULUS_SUM);
    calls.Rooted(ANNULUS_CALL_BROADCAST, &root, &root, 1, ANNULUS_INT32, 0);
    calls.Add(ANNULUS_CALL_ALLGATHER, &rank, ranks.data(), 1, ANNULUS_INT32);
    if (n > 1) {
      calls.Rooted(ANNULUS_CALL_SEND, &sent, nullptr, 1, ANNULUS_INT32, (rank + 1) % n);
      calls.Rooted(ANNULUS_CALL_RECV, nullptr, &arrived, 1, ANNULUS_INT32, (rank + n - 1) % n);
    }
    ASSERT_EQ(calls.Submit(comm, &all), ANNULUS_OK);
    EXPECT_EQ(annulus_request_wait(all, -1), ANNULUS_OK);
    annulus_request_free(all);
    EXPECT_EQ(sums, std::vector<int>(3, n * (n - 1) / 2));
    EXPECT_EQ(root, 77);
    for (int r = 0; r < n; ++r) EXPECT_EQ(ranks[r], r);
    if (n > 1) {
      EXPECT_EQ(arrived, (rank + n - 1) % n);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Links, GroupsTest, OverLinks(1, 2, 3, 4), LinksName);

TEST(GroupRulesTest, ARefusedMemberRefusesAllAndIsNamed) {
  Cluster(ClusterConfig()).Run([](annulus_comm_t* comm, int) {
    int value = 1;
    Calls calls;
    for (int i = 0; i < 3; ++i) calls.Allreduce(&value, &value, 1, ANNULUS_INT32, ANNULUS_SUM);
    annulus_call_t& third = calls.back();
    annulus_request_t* request = nullptr;
    third.count = SIZE_MAX;
    EXPECT_EQ(calls.Submit(comm, &request), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(request, nullptr);
    EXPECT_EQ(LastMessage(comm).find("call 2 of the group: count is"), 0u) << LastMessage(comm);
    third.count = 1;
    third.wire = 7;
    EXPECT_EQ(calls.Submit(comm, &request), ANNULUS_UNSUPPORTED);
    EXPECT_EQ(LastMessage(comm).find("call 2 of the group: wire of annulus_call_t"), 0u) << LastMessage(comm);
    third.wire = 0;
    third.struct_bytes -= 8;
    EXPECT_EQ(calls.Submit(comm, &request), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(value, 1);
    third.struct_bytes += 8;
    EXPECT_EQ(calls.Do(comm), ANNULUS_OK);
    EXPECT_EQ(value, 8) << "one after the other, as they use the same element";
    EXPECT_EQ(Calls().Do(comm), ANNULUS_OK) << "an empty group is done";
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
}

TEST(GroupRulesTest, AllreducesOfOneBufferRunOneAfterTheOther) {
  Cluster(ClusterConfig()).Run([](annulus_comm_t* comm, int) {
    std::vector<int> values(100, 1);
    annulus_request_t* all = nullptr;
    Calls calls;
    for (int i = 0; i < 3; ++i) {
      calls.Allreduce(values.data() + i, values.data() + i, 50, ANNULUS_INT32, ANNULUS_SUM);
    }
    ASSERT_EQ(calls.Submit(comm, &all), ANNULUS_OK);
    EXPECT_EQ(annulus_request_wait(all, -1), ANNULUS_OK);
    annulus_request_free(all);
    EXPECT_EQ(values[0], 2);
    EXPECT_EQ(values[1], 4);
    EXPECT_EQ(values[49], 8);
  });
}

TEST(GroupRulesTest, GroupsThatDifferBetweenRanksAreAMismatch) {
  for (const bool same_total : {true, false}) {
    Cluster(ClusterConfig()).Run([same_total](annulus_comm_t* comm, int rank) {
      std::vector<float> first(10);
      std::vector<float> second(10);
      annulus_request_t* all = nullptr;
      Calls calls;
      const size_t counts[] = {rank == 0 ? size_t{4} : size_t{5}, same_total && rank == 1 ? size_t{5} : size_t{6}};
      calls.Allreduce(first.data(), first.data(), counts[0], ANNULUS_FLOAT32, ANNULUS_SUM);
      calls.Allreduce(second.data(), second.data(), counts[1], ANNULUS_FLOAT32, ANNULUS_SUM);
      ASSERT_EQ(calls.Submit(comm, &all), ANNULUS_OK);
      EXPECT_EQ(annulus_request_wait(all, -1), ANNULUS_MISMATCH);
      annulus_request_free(all);
      const char* what = same_total ? "another division into tensors" : "with count ";
      EXPECT_NE(LastMessage(comm).find(what), std::string::npos) << LastMessage(comm);
      EXPECT_NE(LastMessage(comm).find("allreduce group #1"), std::string::npos) << LastMessage(comm);
    });
  }
}

}  // namespace
}  // namespace annulus
