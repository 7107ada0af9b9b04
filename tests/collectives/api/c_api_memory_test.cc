// Calls on buffers in different memories, through the C API: messages, groups, repeated small calls, user-defined
// operations, and what is refused. c_api_collectives_test and c_api_parts_test have the kinds, types and sizes.

#include <annulus.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "collectives/api/process_state.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/links_fixture.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/collectives/harness/user_memory.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

Bytes BytesOf(const Numbers& numbers) {
  Bytes bytes(numbers.size() * sizeof numbers[0]);
  if (!bytes.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

UserBytes Blank(const UserMemory& memory, size_t count) {
  return memory.Output(Bytes(count * sizeof(int64_t), std::byte{0xcd}));
}

// Several slices. Under a sanitizer, making and comparing numbers takes longer than the calls.
constexpr size_t kCount = kSanitized ? 30'001 : 200'001;

class MemoryTest : public LinksTest {};

TEST_P(MemoryTest, MessagesOfEverySizeGoThereAndBack) {
  const Cluster cluster(config());
  cluster.Run([&](annulus_comm_t* comm, int rank) {
    if (rank > 1) return;
    for (size_t count : {size_t{0}, size_t{1}, size_t{8192}, size_t{8193}, size_t{100000}, kCount}) {
      const Bytes sent = BytesOf(Contribution(0, count, 3));
      const UserBytes first = cluster.memory(rank).Input(sent);
      const UserBytes arrived = Blank(cluster.memory(rank), count);
      if (rank == 0) {
        ASSERT_EQ(annulus_send(comm, first.data(), count, ANNULUS_INT64, 1), ANNULUS_OK);
      }
      ASSERT_EQ(annulus_recv(comm, arrived.data(), count, ANNULUS_INT64, 1 - rank), ANNULUS_OK);
      ASSERT_TRUE(SameBits(arrived.Read(), sent)) << count << " numbers";
      if (rank == 1) {
        ASSERT_EQ(annulus_send(comm, arrived.data(), count, ANNULUS_INT64, 0), ANNULUS_OK);
      }
    }
  });
}

TEST_P(MemoryTest, LargeMessagesPassEachOtherAndACollective) {
  const Cluster cluster(config());
  cluster.Run([&](annulus_comm_t* comm, int rank) {
    const UserBytes own = cluster.memory(rank).Input(BytesOf(Contribution(rank, kCount, 1)));
    std::vector<UserBytes> arrived;
    std::vector<annulus_request_t*> requests;
    for (int peer = 0; peer < n(); ++peer) arrived.push_back(Blank(cluster.memory(rank), kCount));
    for (int peer = 0; peer < n(); ++peer) {
      if (peer == rank) continue;
      requests.resize(requests.size() + 2);
      annulus_request_t** const both = &requests[requests.size() - 2];
      ASSERT_EQ(annulus_send_async(comm, own.data(), kCount, ANNULUS_INT64, peer, &both[0]), ANNULUS_OK);
      ASSERT_EQ(annulus_recv_async(comm, arrived[peer].data(), kCount, ANNULUS_INT64, peer, &both[1]), ANNULUS_OK);
    }
    const UserBytes sum = Blank(cluster.memory(rank), kCount);
    EXPECT_EQ(annulus_allreduce(comm, own.data(), sum.data(), kCount, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK);
    EXPECT_TRUE(SameBits(sum.Read(), BytesOf(SumOfAll(n(), kCount, 1))));
    for (annulus_request_t* request : requests) {
      EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
      EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    }
    for (int peer = 0; peer < n(); ++peer) {
      if (peer != rank) {
        EXPECT_TRUE(SameBits(arrived[peer].Read(), BytesOf(Contribution(peer, kCount, 1))));
      }
    }
  });
}

// The tensors of one group lie in any memory, on each rank differently.
TEST_P(MemoryTest, AGroupTakesTensorsFromAllMemories) {
  const Cluster cluster(config());
  cluster.Run([&](annulus_comm_t* comm, int rank) {
    const size_t counts[] = {1, 700, 3, 40'000, 5'000, 12, 90'000, 2};
    std::vector<UserBytes> inputs;
    std::vector<UserBytes> outputs;
    int tensor = 0;
    for (const size_t count : counts) {
      TestDevice* const device = cluster.memory().device();
      inputs.emplace_back((tensor + rank) % 2 == 0 ? device : nullptr, BytesOf(Contribution(rank, count, tensor)));
      outputs.emplace_back((tensor / 2 + rank) % 2 == 0 ? device : nullptr, Bytes(count * sizeof(int64_t)));
      ++tensor;
    }
    Calls calls;
    for (size_t i = 0; i < std::size(counts); ++i) {
      calls.Allreduce(inputs[i].data(), outputs[i].data(), counts[i], ANNULUS_INT64, ANNULUS_SUM);
    }
    annulus_request_t* all = nullptr;
    ASSERT_EQ(calls.Submit(comm, &all), ANNULUS_OK);
    EXPECT_EQ(annulus_request_wait(all, -1), ANNULUS_OK);
    EXPECT_EQ(annulus_request_free(all), ANNULUS_OK);
    for (size_t i = 0; i < std::size(counts); ++i) {
      EXPECT_TRUE(SameBits(outputs[i].Read(), BytesOf(SumOfAll(n(), counts[i], static_cast<int>(i)))))
          << "tensor " << i;
    }
  });
}

// A call that repeats the latest one but for its buffers takes a short cut, which only host memory may take.
TEST_P(MemoryTest, SmallCallsMayRepeatInAnotherMemory) {
  const Cluster cluster(config());
  cluster.Run([&](annulus_comm_t* comm, int rank) {
    TestDevice* const device = cluster.memory().device();
    for (int round = 0; round < 40; ++round) {
      const UserBytes in((round / 2 + rank) % 2 == 0 ? device : nullptr, BytesOf(Contribution(rank, 5, round)));
      const UserBytes out((round / 3 + rank) % 2 == 0 ? device : nullptr, Bytes(5 * sizeof(int64_t)));
      ASSERT_EQ(annulus_allreduce(comm, in.data(), out.data(), 5, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK);
      ASSERT_TRUE(SameBits(out.Read(), BytesOf(SumOfAll(n(), 5, round)))) << "round " << round;
    }
  });
}

TEST_P(MemoryTest, FactorsApplyOnceInAnyMemory) {
  const Cluster cluster(config());
  cluster.Run([&](annulus_comm_t* comm, int rank) {
    annulus_op_t twice{};
    ASSERT_EQ(annulus_op_create_premul_sum(comm, 2, &twice), ANNULUS_OK);
    for (size_t count : {size_t{3}, size_t{50'000}}) {
      const UserBytes in = cluster.memory(rank).Input(BytesOf(Contribution(rank, count, 1)));
      const UserBytes out = Blank(cluster.memory(rank), count);
      ASSERT_EQ(annulus_allreduce(comm, in.data(), out.data(), count, ANNULUS_INT64, twice), ANNULUS_OK);
      Numbers expected = SumOfAll(n(), count, 1);
      for (int64_t& number : expected) number *= 2;
      EXPECT_TRUE(SameBits(out.Read(), BytesOf(expected)));
    }
  });
}

TEST_P(MemoryTest, RegisteredHostMemoryIsReadByADevice) {
  const Cluster cluster(config());
  cluster.Run([&](annulus_comm_t* comm, int rank) {
    const Numbers own = Contribution(rank, kCount, 1);
    void* in = nullptr;
    ASSERT_EQ(annulus_mem_alloc(kCount * sizeof own[0], &in), ANNULUS_OK);
    std::memcpy(in, own.data(), kCount * sizeof own[0]);
    const UserBytes out = Blank(cluster.memory(rank), kCount);
    EXPECT_EQ(annulus_allreduce(comm, in, out.data(), kCount, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK);
    EXPECT_TRUE(SameBits(out.Read(), BytesOf(SumOfAll(n(), kCount, 1))));
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
    EXPECT_EQ(annulus_mem_free(in), ANNULUS_OK);
  });
}

INSTANTIATE_TEST_SUITE_P(SimLinks, MemoryTest, OverSimLinks(2, 3), LinksName);
INSTANTIATE_TEST_SUITE_P(MixedLinks, MemoryTest, OverMixedLinks(2, 3), LinksName);

TEST(TwoDevicesTest, ACallBetweenTheirMemoriesIsRefused) {
  ClusterConfig config;
  config.memory = "sim";
  const Cluster cluster(config);
  const UserMemory second("sim");
  cluster.Run([&](annulus_comm_t* comm, int) {
    const Bytes zeros(8);
    const UserBytes in = cluster.memory().Input(zeros);
    const UserBytes out = second.Output(zeros);
    EXPECT_EQ(annulus_allreduce(comm, in.data(), out.data(), 1, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_UNSUPPORTED);
    EXPECT_EQ(LastMessage(comm), "sendbuf and recvbuf lie in the memories of two devices");
    EXPECT_EQ(annulus_allreduce(comm, out.data(), out.data(), 1, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK);
  });
}

TEST(ProcessDomainsTest, WithoutDevicesAllMemoryIsTheHosts) {
  int here = 0;
  MemoryDomains& domains = c_api::OfProcess().domains;
  EXPECT_TRUE(domains.devices().empty());
  EXPECT_EQ(domains.Of(&here)->kind(), MemoryKind::kHost);
  const UserMemory device("sim");
  const UserBytes there = device.Input(Bytes(8));
  EXPECT_EQ(domains.Of(there.data()), device.device()->domain());
  EXPECT_EQ(domains.Of(&here)->kind(), MemoryKind::kHost);
}

}  // namespace
}  // namespace annulus
