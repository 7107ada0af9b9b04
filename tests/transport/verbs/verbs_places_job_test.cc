// Jobs whose ranks have GPUs and several RDMA devices, on made-up machines, the simulated provider and the stand-in for
// CUDA's driver: which device's links each rank has, what is told of them, and that the ranks still reach each other.
#include <annulus.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/comm/explain.h"
#include "collectives/comm/places/explain_places.h"
#include "collectives/comm/split.h"
#include "tests/base/made_up_machine.h"
#include "tests/transport/verbs/verbs_gpu_job.h"
#include "tests/transport/verbs/verbs_job.h"
#include "tests/verbs/provider/simulated_port.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/select/select.h"

namespace annulus {
namespace {

constexpr int kRanks = 4;

std::string HostName() {
  std::array<char, 64> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

cuda::FakeLink LinkOf(int first, int second) {
  if (first / 2 == second / 2) return cuda::FakeLink::kNvlink;
  return first + second == 3 ? cuda::FakeLink::kPcie : cuda::FakeLink::kNone;
}

class VerbsPlacesJobTest : public VerbsGpuJob {
 protected:
  void SetUp() override {
    cuda::FakeOptions options;
    options.devices = kRanks;
    options.link = LinkOf;
    MakeGpu(options);
  }

  const cuda::Driver& driver() const { return static_cast<CudaDomain*>(gpu_->domain())->driver(); }

  // Four ranks of one host, with links over verbs alone. Before a rank joins, its thread calls `before`.
  void RunRanks(const std::function<void(int rank, Options* options)>& before, const Body& body) {
    const TransportInfo info = SimulatedVerbsInfo();
    const TransportInfo* const list[] = {&info, &kTcpTransport};
    ClusterConfig config;
    config.nranks = kRanks;
    config.transport = "verbs";
    const auto prepare = [&before](int rank, Options* options) {
      SetPortOfThisThread({.infiniband = true});
      before(rank, options);
    };
    VerbsJob{.ranks = config, .transports = list, .before = prepare, .domains = &domains_, .sysfs = machine_.sysfs()}
        .Run(body);
  }
  // The same where each rank's thread has made its own GPU current, as cudaSetDevice does.
  void RunOnGpus(const Body& body) {
    std::array<cuda::Context, kRanks> contexts{};
    std::array<cuda::Device, kRanks> handles{};
    for (size_t i = 0; i < kRanks; ++i) {
      ASSERT_EQ(driver()->DeviceGet(&handles[i], static_cast<int>(i)), cuda::Result::kSuccess);
      ASSERT_EQ(driver()->DevicePrimaryCtxRetain(&contexts[i], handles[i]), cuda::Result::kSuccess);
    }
    RunRanks([&](int rank, Options*) { driver()->CtxPushCurrent(contexts[static_cast<size_t>(rank)]); }, body);
    for (const cuda::Device handle : handles) driver()->DevicePrimaryCtxRelease(handle);
  }

  static std::string Explained(annulus_comm_t* comm) {
    std::string text;
    EXPECT_TRUE(ExplainPlaces(comm, &text).ok());
    return text;
  }

  const MadeUpMachine machine_{"jobs"};
};

TEST_F(VerbsPlacesJobTest, EachRankUsesTheCardNearItsGpuAndExplainTellsSo) {
  machine_.AddTwoSockets();
  SimulatedVerbs::SetMachine({.devices = kRanks, .sysfs = machine_.infiniband()});
  const std::string host = "host 0 (" + HostName() + "), CPUs on NUMA node 0, ";
  const std::string near = "PIX to GPU 0000:1";
  std::string expected = "# where the ranks are:\n";
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string number = std::to_string(rank);
    const std::string card = std::to_string(kRanks - 1 - rank);
    expected += "#   rank " + number + ": " + host + "GPU " + number + " at 0000:1" + number +
                ":00.0 (Fake GPU), verbs sim" + card + ", port 1, InfiniBand LID " + (card == "0" ? "" : card + "0") +
                "1 (" + near + number + ":00.0, below one PCIe switch or port)\n";
  }
  expected +=
      "# how the GPUs of a host reach each other:\n"
      "#   rank 0: rank 1 by NVLink (PHB), rank 2 not (SYS), rank 3 by PCIe (SYS)\n"
      "#   rank 1: rank 0 by NVLink (PHB), rank 2 by PCIe (SYS), rank 3 not (SYS)\n"
      "#   rank 2: rank 0 not (SYS), rank 1 by PCIe (SYS), rank 3 by NVLink (NODE)\n"
      "#   rank 3: rank 0 by PCIe (SYS), rank 1 not (SYS), rank 2 by NVLink (NODE)\n";
  const SimulatedCounts before = SimulatedVerbs::Counts();
  const std::string log = LogOf([&] {
    RunOnGpus([&](const auto& comm) {
      EXPECT_EQ(Explained(Handle(comm)), expected);
      const std::string links = ExplainLinks(Handle(comm));
      EXPECT_NE(links.find("sim" + std::to_string(kRanks - 1 - comm->rank()) + ", port 1"), std::string::npos) << links;
      Allreduce(comm);
    });
  });
  const SimulatedCounts after = SimulatedVerbs::Counts();
  for (size_t card = 0; card < kRanks; ++card) EXPECT_GT(after.device_bytes[card], before.device_bytes[card]);
  EXPECT_NE(log.find("annulus[2] info: uses GPU 2 at 0000:12:00.0 (Fake GPU), verbs sim1, port 1"), std::string::npos)
      << log;
}

// Such as of a loader: the thread that splits has no GPU.
TEST_F(VerbsPlacesJobTest, WhatIsSplitUsesTheSameCards) {
  machine_.AddTwoSockets();
  SimulatedVerbs::SetMachine({.devices = kRanks, .sysfs = machine_.infiniband()});
  RunOnGpus([&](const auto& comm) {
    cuda::Context own = nullptr;
    driver()->CtxPopCurrent(&own);
    std::unique_ptr<Communicator> child;
    ASSERT_TRUE(Split(comm.get(), comm->rank() / 2, -comm->rank(), &child).ok());
    EXPECT_NE(child->rank(), comm->rank() % 2) << "it has another number there";
    EXPECT_EQ(child->machine().devices, comm->machine().devices);
    EXPECT_EQ(child->machine().gpu, comm->rank());
    driver()->CtxPushCurrent(own);
  });
}

TEST_F(VerbsPlacesJobTest, TheSettingNamesTheGpu) {
  machine_.AddTwoSockets();
  SimulatedVerbs::SetMachine({.devices = kRanks, .sysfs = machine_.infiniband()});
  RunRanks([](int rank, Options* options) { options->device = kRanks - 1 - rank; },
           [](const auto& comm) {
             EXPECT_EQ(comm->machine().gpu, kRanks - 1 - comm->rank());
             EXPECT_EQ(comm->machine().devices.substr(0, 10), "verbs sim" + std::to_string(comm->rank()));
           });
  EXPECT_EQ(gpu_->fake()->Counts().contexts, 0) << "a question where a GPU is takes it up";
}

// Ranks without GPUs, and a system that tells nothing.
TEST_F(VerbsPlacesJobTest, RanksOfAHostShareOutItsCards) {
  SimulatedVerbs::SetMachine({.devices = 3, .sysfs = machine_.infiniband()});
  RunRanks([](int rank, Options* options) { options->local_rank = kRanks - 1 - rank; },
           [&](const auto& comm) {
             const int turn = kRanks - 1 - comm->rank();
             const int card = (turn + turn / 3) % 3;
             const std::string place = "#   rank " + std::to_string(comm->rank()) + ": host 0 (" + HostName() +
                                       "), verbs sim" + std::to_string(card) + ", port 1, ";
             const std::string told = Explained(Handle(comm));
             EXPECT_NE(told.find(place), std::string::npos) << told;
             EXPECT_EQ(told.find("# how the GPUs"), std::string::npos) << told;
           });
}

TEST_F(VerbsPlacesJobTest, WithoutGpusAndDevicesThereIsNothingToTell) {
  VerbsJob{.transports = Transports(), .sysfs = machine_.sysfs()}.Run(
      [](const auto& comm) { EXPECT_EQ(Explained(Handle(comm)), ""); });
}

// Two ranks on each of two pretended hosts. What a rank sends to another host goes by the card of its number.
TEST_F(VerbsPlacesJobTest, InTwoLevelsEachMemberUsesItsOwnCard) {
  std::vector<TransportInfo> infos;
  for (const TransportInfo* each : Transports()) infos.push_back(*each);
  std::vector<const TransportInfo*> list;
  for (TransportInfo& each : infos) {
    if (each.name == std::string("verbs")) each.create = CreateSimulatedVerbs;
    list.push_back(&each);
  }
  ClusterConfig config;
  config.nranks = kRanks;
  config.hosts = 2;
  for (const bool shares_out : {true, false}) {
    SimulatedVerbs::SetMachine({.devices = 2});
    const SimulatedCounts before = SimulatedVerbs::Counts();
    const auto prepare = [shares_out](int rank, Options* options) {
      SetPortOfThisThread({.infiniband = true});
      options->local_rank = shares_out ? rank / 2 : 0;
    };
    VerbsJob{.ranks = config, .transports = list, .before = prepare}.Run([](const auto& comm) {
      const ExplainInput input = ExplainInputOf(Handle(comm));
      EXPECT_NE(ExplainCall(input, CollectiveKind::kAllreduce, kCount, sizeof(float)).find("* two_level"),
                std::string::npos);
      std::vector<float> data(kCount, 1);
      ASSERT_EQ(annulus_allreduce(Handle(comm), data.data(), data.data(), kCount, ANNULUS_FLOAT32, ANNULUS_SUM),
                ANNULUS_OK);
      EXPECT_EQ(data, std::vector<float>(kCount, kRanks));
      EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
    });
    const SimulatedCounts after = SimulatedVerbs::Counts();
    const auto first = static_cast<int64_t>(after.device_bytes[0] - before.device_bytes[0]);
    const auto second = static_cast<int64_t>(after.device_bytes[1] - before.device_bytes[1]);
    // Each host sends all of the data once; what else there is are headers and the barrier.
    EXPECT_GE(first + second, static_cast<int64_t>(2 * kBytes));
    const int64_t apart = std::abs(first - second);
    EXPECT_EQ(apart < first / 10, shares_out) << first << " and " << second;
    EXPECT_EQ(second == 0, !shares_out);
  }
}

}  // namespace
}  // namespace annulus
