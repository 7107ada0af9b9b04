// A communicator takes its device from whoever makes it: collectives and messages on memory that no CPU may touch.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "collectives/api/config.h"
#include "collectives/comm/communicator.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/device/sim_device.h"

namespace annulus {
namespace {

constexpr int kRanks = 2;

// One rank: a communicator whose buffers lie on a device of its own.
struct DeviceRank {
  DeviceRank(const Cluster& cluster, int rank, RequestTable* requests) : device({.seed = 7u + rank}) {
    Options options;
    EXPECT_TRUE(ToOptions(cluster.Config(rank), &options).ok());
    const Resources resources{.requests = requests, .device = &device};
    const Status status = Communicator::Create(options, resources, &comm);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

  SimDevice device;
  std::unique_ptr<Communicator> comm;
};

void ExpectSum(DeviceRank* rank, size_t count) {
  const Numbers own = Contribution(rank->comm->rank(), count, 1);
  const size_t bytes = count * sizeof own[0];
  std::byte* const in = rank->device.Allocate(bytes);
  std::byte* const out = rank->device.Allocate(bytes);
  rank->device.Write(in, own.data(), bytes);
  CallArguments arguments;
  arguments.kind = CollectiveKind::kAllreduce;
  arguments.type = DataType::kInt64;
  arguments.count = count;
  arguments.sendbuf = in;
  arguments.recvbuf = out;
  // Twice: a call that comes again may take a short cut.
  for (int call = 0; call < 2; ++call) {
    const Status status = rank->comm->RunInWords(arguments);
    ASSERT_TRUE(status.ok()) << status.ToString();
    Numbers sum(count);
    rank->device.Read(sum.data(), out, bytes);
    EXPECT_EQ(sum, SumOfAll(kRanks, count, 1)) << count << " numbers";
  }
}

void ExpectMessage(DeviceRank* rank, size_t count) {
  const bool sends = rank->comm->rank() == 0;
  const Numbers sent = Contribution(0, count, 2);
  const size_t bytes = count * sizeof sent[0];
  std::byte* const memory = rank->device.Allocate(bytes);
  if (sends) rank->device.Write(memory, sent.data(), bytes);
  CallArguments arguments;
  arguments.kind = sends ? CollectiveKind::kSend : CollectiveKind::kRecv;
  arguments.type = DataType::kInt64;
  arguments.count = count;
  arguments.root = sends ? 1 : 0;
  arguments.sendbuf = sends ? memory : nullptr;
  arguments.recvbuf = sends ? nullptr : memory;
  const Status status = rank->comm->RunInWords(arguments);
  ASSERT_TRUE(status.ok()) << status.ToString();
  if (sends) return;
  Numbers received(count);
  rank->device.Read(received.data(), memory, bytes);
  EXPECT_EQ(received, sent);
}

class InjectedDeviceTest : public ::testing::TestWithParam<const char*> {};

TEST_P(InjectedDeviceTest, ItsMemoryIsReachedThroughItOnly) {
  ClusterConfig config;
  config.nranks = kRanks;
  config.transport = GetParam();
  const Cluster cluster(config);
  RequestTable requests;
  ForEachRank(kRanks, [&](int number) {
    DeviceRank rank(cluster, number, &requests);
    if (rank.comm == nullptr) return;
    for (size_t count : {1, 1000, 300'000}) ExpectSum(&rank, count);
    ExpectMessage(&rank, 100'000);
    CallArguments barrier;  // A rank that leaves while another is at work is a failure.
    barrier.kind = CollectiveKind::kBarrier;
    EXPECT_EQ(rank.comm->Run(barrier), Code::kOk);
    rank.comm.reset();
    EXPECT_EQ(rank.device.pending(), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, InjectedDeviceTest, ::testing::Values("shm", "tcp"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

}  // namespace
}  // namespace annulus
