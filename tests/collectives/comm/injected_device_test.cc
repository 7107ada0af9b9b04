// A communicator takes its memory domains from whoever makes it: collectives and messages on memory that no CPU may
// touch, and ranks that sleep while their device works.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>

#include "collectives/api/config.h"
#include "collectives/comm/communicator.h"
#include "collectives/engine/driver.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/device/sim_device.h"

namespace annulus {
namespace {

constexpr int kRanks = 2;

// One rank: a communicator whose buffers lie on a device of its own.
struct DeviceRank {
  DeviceRank(const Cluster& cluster, int rank, RequestTable* requests, SimDeviceOptions device_options,
             int64_t spin_us = -1)
      : device((device_options.seed = 7u + rank, device_options)) {
    domains.Add(&device);
    Options options;
    const UserConfig config = cluster.Config(rank);
    EXPECT_TRUE(ToOptions(&config, ProcessVariable, &options).ok());
    options.spin_us = spin_us;
    const Resources resources{.requests = requests, .domains = &domains};
    const Status status = Communicator::Create(options, resources, &comm);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

  SimDevice device;
  MemoryDomains domains;
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

using Param = std::tuple<const char*, bool>;  // Transport; whether the devices wake their ranks.

class InjectedDeviceTest : public ::testing::TestWithParam<Param> {
 protected:
  static ClusterConfig Config() {
    ClusterConfig config;
    config.nranks = kRanks;
    config.transport = std::get<0>(GetParam());
    return config;
  }
  static SimDeviceOptions Device() { return {.has_thread = std::get<1>(GetParam())}; }
};

TEST_P(InjectedDeviceTest, ItsMemoryIsReachedThroughItOnly) {
  const Cluster cluster(Config());
  RequestTable requests;
  ForEachRank(kRanks, [&](int number) {
    DeviceRank rank(cluster, number, &requests, Device());
    if (rank.comm == nullptr) return;
    for (size_t count : {1, 1000, 300'000}) ExpectSum(&rank, count);
    ExpectMessage(&rank, 100'000);
    CallArguments barrier;  // A rank that leaves while another is at work is a failure.
    barrier.kind = CollectiveKind::kBarrier;
    EXPECT_EQ(rank.comm->Run(barrier).code(), Code::kOk);
    EXPECT_EQ(rank.device.pending(), 0);
    EXPECT_EQ(rank.device.unregistered(), 0) << "slots of a link or an algorithm that are not registered";
    EXPECT_GT(rank.device.registrations(), 0u);
    rank.comm.reset();
    EXPECT_EQ(rank.device.registrations(), 0u);
  });
}

TEST_P(InjectedDeviceTest, AfterAFailureItsWorkTouchesNothing) {
  const Cluster cluster(Config());
  RequestTable requests;
  SimDeviceOptions slow = Device();
  slow.min_time = slow.max_time = kPatience;  // With a thread, nothing finishes before the abort.
  Tally submitted;
  ForEachRank(kRanks, [&](int number) {
    DeviceRank rank(cluster, number, &requests, slow);
    if (rank.comm == nullptr) return;
    constexpr size_t kCount = 1'000'000;
    CallArguments arguments;
    arguments.kind = CollectiveKind::kAllreduce;
    arguments.count = kCount;
    arguments.sendbuf = rank.device.Allocate(kCount * sizeof(float));
    arguments.recvbuf = rank.device.Allocate(kCount * sizeof(float));
    RequestHandle request = 0;
    size_t refused = 0;
    FailedCall failed;
    ASSERT_EQ(rank.comm
                  ->Submit(
                      {&arguments, 1}, [&request](RequestHandle made) { request = made; }, &refused)
                  .code(),
              Code::kOk);
    submitted.Add();
    ASSERT_TRUE(submitted.WaitFor(kRanks));
    if (number == 1) rank.comm->Abort();
    const Code code = rank.comm->Wait(request, -1, &failed).code();
    EXPECT_TRUE(code == Code::kAborted || (code == Code::kOk && !slow.has_thread)) << CodeName(code);
    EXPECT_EQ(rank.device.pending(), 0) << "the buffers are the user's again";
    EXPECT_EQ(rank.comm->Free(request).code(), Code::kOk);
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, InjectedDeviceTest,
                         ::testing::Combine(::testing::Values("shm", "tcp"), ::testing::Bool()),
                         [](const testing::TestParamInfo<Param>& info) {
                           return std::string(std::get<0>(info.param)) + (std::get<1>(info.param) ? "Wakes" : "Polled");
                         });

// A message from rank 0 to rank 1 whose devices never get to the copies that it needs.
struct StuckMessage {
  StuckMessage(const Cluster& cluster, int number, RequestTable* requests)
      : rank(cluster, number, requests, {.min_time = kPatience, .max_time = kPatience, .has_thread = true}) {}

  // Starts it; for rank 0, until its device has work. Nobody drives it then, as somebody does on rank 1. `options`
  // outlives the request.
  void Start(const CallOptions* options) {
    constexpr size_t kElements = 1'000'000;
    const bool sends = rank.comm->rank() == 0;
    std::byte* const memory = rank.device.Allocate(kElements * sizeof(int32_t));
    CallArguments arguments;
    arguments.kind = sends ? CollectiveKind::kSend : CollectiveKind::kRecv;
    arguments.type = DataType::kInt32;
    arguments.count = kElements;
    arguments.root = sends ? 1 : 0;
    arguments.sendbuf = sends ? memory : nullptr;
    arguments.recvbuf = sends ? nullptr : memory;
    arguments.options = options;
    size_t refused = 0;
    const Status status = rank.comm->Submit(
        {&arguments, 1}, [this](RequestHandle made) { request = made; }, &refused);
    ASSERT_TRUE(status.ok()) << status.ToString();
    const Deadline deadline = DeadlineAfter(kSoon);
    while (sends && rank.device.pending() == 0 && Now() < deadline) {
      ASSERT_EQ(rank.comm->Wait(request, 0, &failed).code(), Code::kInProgress);
    }
    ASSERT_TRUE(!sends || rank.device.pending() > 0);
  }

  DeviceRank rank;
  RequestHandle request = 0;
  FailedCall failed;
};

// In most rounds the getter sees the verdict before the wait does, and nobody drives meanwhile.
TEST(StuckDeviceTest, AVerdictThatAGetterSeesFirstStopsTheDeviceBeforeTheMessageEnds) {
  for (int round = 0; round < 10; ++round) {
    const Cluster cluster({});
    RequestTable requests;
    Tally started;
    Tally ended;
    ForEachRank(kRanks, [&](int number) {
      StuckMessage message(cluster, number, &requests);
      if (message.rank.comm == nullptr) return;
      message.Start(nullptr);
      if (number == 1) {
        EXPECT_TRUE(started.WaitFor(1));
        message.rank.comm->Abort();
      } else {
        started.Add();
        const auto has_verdict = [&] { return message.rank.comm->verdict() != nullptr; };
        const auto is_in_progress = [&] {
          return message.rank.comm->Wait(message.request, 0, &message.failed).code() == Code::kInProgress;
        };
        for (int looks = 0; !has_verdict() && (++looks % 50 != 0 || is_in_progress());) {
        }
        EXPECT_EQ(message.rank.comm->Wait(message.request, -1, &message.failed).code(), Code::kAborted);
        EXPECT_EQ(message.rank.device.pending(), 0) << "the buffer is the user's again";
      }
      ended.Add();
      EXPECT_TRUE(ended.WaitFor(kRanks));
    });
  }
}

TEST(StuckDeviceTest, DestroyStopsTheDeviceBeforeACallbackHearsOfTheEnd) {
  struct Heard {
    const SimDevice* device = nullptr;
    int pending = -1;
    annulus_status_t status = ANNULUS_OK;
  };
  const Cluster cluster({});
  RequestTable requests;
  Tally ended;
  ForEachRank(kRanks, [&](int number) {
    Heard heard;
    CallOptions options;
    options.done_context = &heard;
    options.done = [](void* context, annulus_status_t status) {
      auto* const told = static_cast<Heard*>(context);
      told->pending = told->device->pending();
      told->status = status;
    };
    StuckMessage message(cluster, number, &requests);
    if (message.rank.comm == nullptr) return;
    heard.device = &message.rank.device;
    message.Start(&options);
    if (number == 1) {
      EXPECT_TRUE(ended.WaitFor(1));
    }
    message.rank.comm.reset();
    ended.Add();
    EXPECT_EQ(heard.pending, 0) << "the buffer is the user's again";
    EXPECT_NE(heard.status, ANNULUS_OK);
  });
}

// Sleeps of a lone rank, which waits for its device only, in that many calls; and the time that they took.
struct Waits {
  uint64_t sleeps = 0;
  Nanoseconds took = 0;
};
Waits WaitsOf(const SimDeviceOptions& device, int64_t spin_us, int calls) {
  ClusterConfig config;
  config.nranks = 1;
  const Cluster cluster(config);
  RequestTable requests;
  DeviceRank rank(cluster, 0, &requests, device, spin_us);
  if (rank.comm == nullptr) return {};
  constexpr size_t kBytes = 1000 * sizeof(float);
  CallArguments arguments;
  arguments.kind = CollectiveKind::kAllreduce;
  arguments.count = kBytes / sizeof(float);
  arguments.sendbuf = rank.device.Allocate(kBytes);
  arguments.recvbuf = rank.device.Allocate(kBytes);
  const Nanoseconds begin = Now();
  for (int call = 0; call < calls; ++call) EXPECT_EQ(rank.comm->Run(arguments).code(), Code::kOk);
  return {rank.comm->ReadTotals().sleeps, Now() - begin};
}

TEST(DeviceWaitTest, ARankSleepsWhileItsDeviceWorksAndIsWoken) {
  constexpr int kCalls = 10;
  const SimDeviceOptions device{.min_time = 20 * kMillisecond, .max_time = 20 * kMillisecond, .has_thread = true};
  // Without polling: on a busy machine each yield may take as long as the device.
  const Waits waits = WaitsOf(device, 0, kCalls);
  EXPECT_GT(waits.sleeps, 0u);
  // A rank that misses its wake-up sleeps until the driver's first doubt.
  EXPECT_LT(waits.took, kCalls * Driver::kFirstDoubt / 2);
}

TEST(DeviceWaitTest, WithoutADescriptorItPolls) { EXPECT_EQ(WaitsOf({}, -1, 10).sleeps, 0u); }

}  // namespace
}  // namespace annulus
