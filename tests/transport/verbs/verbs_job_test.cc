// Whole jobs over verbs, on the simulated provider: every collective's sums, a split, several rails, and a request that
// fails.
#include "tests/transport/verbs/verbs_job.h"

#include <annulus.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "collectives/comm/communicator.h"
#include "collectives/comm/explain.h"
#include "collectives/comm/split.h"
#include "tests/base/alike.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/soak/rounds.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/memory/memory.h"
#include "transport/verbs/device/verbs_regions.h"

namespace annulus {
namespace {

ClusterConfig Ranks(int nranks) {
  ClusterConfig config;
  config.nranks = nranks;
  return config;
}

using PortsOfRank = std::function<std::string(int rank)>;

// Runs `body` on a thread for each rank, with a communicator over verbs. `ports`: as ANNULUS_VERBS_DEVICE.
template <class Body>
void RunJob(const ClusterConfig& config, Body body, const MemoryRegistry* memory = nullptr,
            const PortsOfRank& ports = nullptr) {
  const TransportInfo info = SimulatedVerbsInfo();
  const TransportInfo* const list[] = {&info};
  const auto before = [&ports](int rank, Options* options) {
    if (ports) options->verbs_device = ports(rank);
  };
  VerbsJob{config, list, memory, before}.Run(body);
}

void ExpectSum(const std::unique_ptr<Communicator>& comm, size_t count) {
  const std::unique_ptr<float[]> data(new float[count]);
  FillWith(data.get(), count, static_cast<float>(comm->rank() + 1));
  ASSERT_EQ(annulus_allreduce(Handle(comm), data.get(), data.get(), count, ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK)
      << LastMessage(Handle(comm));
  const int nranks = comm->nranks();
  EXPECT_TRUE(AllAre(data.get(), count, static_cast<float>(nranks * (nranks + 1) / 2))) << count;
}

void ExpectNoMistakes() {
  const SimulatedCounts counts = SimulatedVerbs::Counts();
  EXPECT_EQ(counts.not_ready, 0u);
  EXPECT_EQ(counts.overruns, 0u);
  EXPECT_EQ(counts.refused_posts, 0u);
  EXPECT_EQ(counts.read_stalls, 0u);
  EXPECT_EQ(counts.objects, 0u);
}

TEST(VerbsJobTest, EveryAlgorithmSumsAndNoMistakeIsMade) {
  for (const char* algorithm : {"auto", "ring", "one_hop", "log_steps", "tree"}) {
    for (const int nranks : {2, 3, 5}) {
      if (kSanitized && nranks == 3) continue;
      SCOPED_TRACE(algorithm + std::string(" of ") + std::to_string(nranks));
      ClusterConfig config = Ranks(nranks);
      config.algorithm = algorithm;
      RunJob(config, [](const std::unique_ptr<Communicator>& comm) {
        for (const size_t count : {1, 10, 1000, 100'000}) ExpectSum(comm, count);
        EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
      });
      if (HasFailure()) return;
    }
  }
  ExpectNoMistakes();
}

TEST(VerbsJobTest, BytesAreCountedUnderItsName) {
  constexpr size_t kCount = 3 * 40'000;
  RunJob(Ranks(3), [](const std::unique_ptr<Communicator>& comm) {
    ExpectSum(comm, kCount);
    annulus_transport_counters_t counters{};
    counters.struct_bytes = sizeof counters;
    ASSERT_EQ(annulus_comm_transport_counters(Handle(comm), 0, &counters), ANNULUS_OK);
    EXPECT_STREQ(counters.transport, "verbs");
    EXPECT_EQ(counters.sent_bytes, 2 * 2 * (kCount / 3) * sizeof(float));
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
  });
}

annulus_transport_counters_t Counters(const std::unique_ptr<Communicator>& comm) {
  annulus_transport_counters_t counters{};
  counters.struct_bytes = sizeof counters;
  EXPECT_EQ(annulus_comm_transport_counters(Handle(comm), 0, &counters), ANNULUS_OK);
  return counters;
}

uint64_t SentBytes(const std::unique_ptr<Communicator>& comm) { return Counters(comm).sent_bytes; }

// What is sent is input, result, or what is passed on; all of it lies in registered memory, and none is copied.
TEST(VerbsJobTest, RegisteredMemoryIsSentWithoutACopy) {
  constexpr size_t kCount = 6 * 40'000;
  MemoryRegistry registry;
  for (const int nranks : {2, 3}) {
    ClusterConfig config = Ranks(nranks);
    config.algorithm = "ring";
    const uint64_t before = SimulatedVerbs::Counts().read_in_place;
    std::atomic<uint64_t> sent = 0;
    RunJob(
        config,
        [&](const std::unique_ptr<Communicator>& comm) {
          void* memory = nullptr;
          ASSERT_TRUE(registry.Allocate(kCount * sizeof(float), &memory).ok());
          auto* const data = static_cast<float*>(memory);
          for (int root = 0; root < nranks; ++root) {
            std::fill_n(data, kCount, static_cast<float>(comm->rank()));
            ASSERT_EQ(annulus_broadcast(Handle(comm), data, data, kCount, ANNULUS_FLOAT32, root), ANNULUS_OK);
            EXPECT_EQ(std::count(data, data + kCount, static_cast<float>(root)), static_cast<ptrdiff_t>(kCount));
          }
          // Partial sums of more ranks are written into slots, in the same pass that adds.
          if (nranks == 2) {
            ASSERT_EQ(annulus_allreduce(Handle(comm), data, data, kCount, ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK);
            EXPECT_EQ(std::count(data, data + kCount, 2.0F), static_cast<ptrdiff_t>(kCount));
          }
          sent += SentBytes(comm);
          EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
          EXPECT_TRUE(registry.Free(memory).ok());
        },
        &registry);
    EXPECT_GE(sent.load(), kCount * sizeof(float) * static_cast<size_t>(nranks * (nranks - 1)));
    EXPECT_EQ(SimulatedVerbs::Counts().read_in_place - before, sent.load());
  }
  ExpectNoMistakes();
}

// Regions make room for each other while both ranks send from them and read into them.
TEST(VerbsJobTest, SumsInMoreRegisteredMemoryThanDevicesKnow) {
  constexpr size_t kCount = 16 * 1024;
  constexpr size_t kBuffers = VerbsRegions::kMost + 20;
  MemoryRegistry registry;
  ClusterConfig config = Ranks(2);
  config.algorithm = "ring";
  config.small_bytes = 0;
  const uint64_t before = SimulatedVerbs::Counts().registrations;
  RunJob(
      config,
      [&](const std::unique_ptr<Communicator>& comm) {
        std::vector<void*> buffers(kBuffers);
        for (void*& buffer : buffers) ASSERT_TRUE(registry.Allocate(kCount * sizeof(float), &buffer).ok());
        for (int round = 0; round < (kSanitized ? 2 : 4); ++round) {
          for (size_t i = 0; i < kBuffers; ++i) {
            auto* const data = static_cast<float*>(buffers[i]);
            FillWith(data, kCount, static_cast<float>(i + static_cast<size_t>(comm->rank())));
            ASSERT_EQ(annulus_allreduce(Handle(comm), data, data, kCount, ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK);
            const auto sum = static_cast<float>(2 * i + 1);
            ASSERT_TRUE(AllAre(data, kCount, sum)) << i;
          }
        }
        EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
        for (void* const buffer : buffers) EXPECT_TRUE(registry.Free(buffer).ok());
      },
      &registry);
  EXPECT_GT(SimulatedVerbs::Counts().registrations - before, 2 * kBuffers) << "no region made room";
  ExpectNoMistakes();
}

// Whatever a call has asked of a link before it sent: regions that it used make room for others afterwards.
TEST(VerbsJobTest, RegionsOfCallsThatAreOverMakeRoom) {
  constexpr int kRanks = 3;
  constexpr size_t kCount = 6 * 40'000;
  for (const char* algorithm : {"auto", "ring", "two_hop"}) {
    SCOPED_TRACE(algorithm);
    MemoryRegistry registry;
    ClusterConfig config = Ranks(kRanks);
    config.algorithm = algorithm;
    std::atomic<uint64_t> before = 0;
    const auto body = [&](const std::unique_ptr<Communicator>& comm) {
      void* memory[2] = {};
      for (void*& each : memory) ASSERT_TRUE(registry.Allocate(kCount * sizeof(float), &each).ok());
      const auto sum = [&](void* data) {
        std::fill_n(static_cast<float*>(data), kCount, 1.0F);
        EXPECT_EQ(annulus_allreduce(Handle(comm), data, data, kCount, ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK);
        EXPECT_EQ(std::count(static_cast<float*>(data), static_cast<float*>(data) + kCount, 3.0F),
                  static_cast<ptrdiff_t>(kCount));
      };
      for (int i = 0; i < 3; ++i) sum(memory[0]);
      EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
      if (comm->rank() == 0) {
        before = SimulatedVerbs::Counts().registrations;
        SimulatedVerbs::SetMachine({.most_registered_bytes = SimulatedVerbs::Counts().registered_bytes});
      }
      EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
      for (int i = 0; i < 12; ++i) sum(memory[1]);
      EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
      for (void* const each : memory) EXPECT_TRUE(registry.Free(each).ok());
    };
    RunJob(config, body, &registry);
    EXPECT_GE(SimulatedVerbs::Counts().registrations - before, static_cast<uint64_t>(kRanks));
    SimulatedVerbs::SetMachine({});
  }
  ExpectNoMistakes();
}

// Broadcasts, allgathers and the second half of allreduces by the ring: results go from one rank's memory to the next
// one's, and no slot is used.
TEST(VerbsJobTest, ResultsGoFromRegisteredMemoryToRegisteredMemory) {
  constexpr size_t kCount = 6 * 40'000;
  MemoryRegistry registry;
  for (const int nranks : {2, 3}) {
    ClusterConfig config = Ranks(nranks);
    config.algorithm = "ring";
    const SimulatedCounts before = SimulatedVerbs::Counts();
    const size_t part = kCount / static_cast<size_t>(nranks);
    std::atomic<uint64_t> read = 0;
    std::atomic<uint64_t> landed = 0;
    RunJob(
        config,
        [&](const std::unique_ptr<Communicator>& comm) {
          void* memory = nullptr;
          ASSERT_TRUE(registry.Allocate(2 * kCount * sizeof(float), &memory).ok());
          auto* const data = static_cast<float*>(memory);
          float* const all = data + kCount;
          const auto rank = static_cast<float>(comm->rank());
          for (int root = 0; root < nranks; ++root) {
            std::fill_n(data, kCount, rank);
            ASSERT_EQ(annulus_broadcast(Handle(comm), data, data, kCount, ANNULUS_FLOAT32, root), ANNULUS_OK);
            EXPECT_EQ(std::count(data, data + kCount, static_cast<float>(root)), static_cast<ptrdiff_t>(kCount));
          }
          std::fill_n(data, part, rank);
          ASSERT_EQ(annulus_allgather(Handle(comm), data, all, part, ANNULUS_FLOAT32), ANNULUS_OK);
          for (int i = 0; i < nranks; ++i) {
            const float* const from = all + static_cast<size_t>(i) * part;
            EXPECT_EQ(std::count(from, from + part, static_cast<float>(i)), static_cast<ptrdiff_t>(part));
          }
          std::fill_n(data, kCount, rank);
          ASSERT_EQ(annulus_allreduce(Handle(comm), data, all, kCount, ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK);
          const auto sum = static_cast<float>(nranks * (nranks - 1) / 2);
          EXPECT_EQ(std::count(all, all + kCount, sum), static_cast<ptrdiff_t>(kCount));
          EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
          read += Counters(comm).read_bytes;
          landed += Counters(comm).landed_bytes;
          EXPECT_TRUE(registry.Free(memory).ok());
        },
        &registry);
    const auto others = static_cast<uint64_t>(nranks - 1);
    const uint64_t broadcasts = static_cast<uint64_t>(nranks) * others * kCount * sizeof(float);
    const uint64_t gathers = 2 * others * kCount * sizeof(float);
    EXPECT_EQ(SimulatedVerbs::Counts().read_landed - before.read_landed, broadcasts + gathers);
    EXPECT_EQ(landed, broadcasts + gathers);
    EXPECT_EQ(read, SimulatedVerbs::Counts().read_bytes - before.read_bytes);
  }
  ExpectNoMistakes();
}

TEST(VerbsJobTest, OneDirectionOnlyReturnsItsCredits) {
  RunJob(Ranks(2), [](const std::unique_ptr<Communicator>& comm) {
    std::vector<int32_t> data(300'000, comm->rank() == 0 ? 7 : 0);
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(annulus_broadcast(Handle(comm), data.data(), data.data(), data.size(), ANNULUS_INT32, 0), ANNULUS_OK);
    }
    EXPECT_EQ(data, std::vector<int32_t>(300'000, 7));
    // Small ones too, which take no slots.
    for (int i = 0; i < 500; ++i) {
      ASSERT_EQ(annulus_broadcast(Handle(comm), data.data(), data.data(), 3, ANNULUS_INT32, 0), ANNULUS_OK);
    }
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
  });
  ExpectNoMistakes();
}

TEST(VerbsJobTest, ASplitHasItsOwnLinks) {
  RunJob(Ranks(4), [](const std::unique_ptr<Communicator>& comm) {
    std::unique_ptr<Communicator> half;
    const Status made = Split(comm.get(), comm->rank() % 2, 0, &half);
    ASSERT_TRUE(made.ok()) << made.ToString();
    ExpectSum(half, 5000);
    std::vector<int32_t> in(4 * 50, comm->rank());
    std::vector<int32_t> out(4 * 50);
    EXPECT_EQ(annulus_alltoall(Handle(comm), in.data(), out.data(), 50, ANNULUS_INT32), ANNULUS_OK);
    EXPECT_EQ(out[0], 0);
    EXPECT_EQ(out[199], 3);
  });
  ExpectNoMistakes();
}

// How many bytes each device has sent since `before`.
uint64_t BytesOf(size_t device, const SimulatedCounts& before) {
  return SimulatedVerbs::Counts().device_bytes[device] - before.device_bytes[device];
}

TEST(VerbsJobTest, SeveralRailsCarryTheJobAndTheSumsAreRight) {
  SimulatedVerbs::SetMachine({.devices = 3});
  for (const char* ports : {"sim0,sim1", "sim2,sim0,sim1"}) {
    for (const int nranks : {2, 3}) {
      for (const char* algorithm : {"ring", "one_hop", "auto"}) {
        // A sanitizer's build has each list and each algorithm, not each with each.
        if (kSanitized && (ports[3] == '2') != (algorithm[0] == 'r')) continue;
        SCOPED_TRACE(ports + std::string(" ") + algorithm + " of " + std::to_string(nranks));
        const SimulatedCounts before = SimulatedVerbs::Counts();
        ClusterConfig config = Ranks(nranks);
        config.algorithm = algorithm;
        RunJob(
            config,
            [&](const std::unique_ptr<Communicator>& comm) {
              for (const size_t count : {1, 10, 1000, 100'000, 1'000'000}) ExpectSum(comm, count);
              EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
              const std::string told = ExplainLinks(Handle(comm));
              for (const char* each : {"sim0, port 1", "sim1, port 1"}) {
                EXPECT_NE(told.find(each), std::string::npos) << told;
              }
            },
            nullptr, [ports](int) { return ports; });
        for (const size_t device : {0, 1}) EXPECT_GT(BytesOf(device, before), 100'000u) << "device " << device;
        EXPECT_EQ(BytesOf(2, before) > 100'000u, std::string(ports).find("sim2") != std::string::npos);
        if (HasFailure()) return;
      }
    }
  }
  SimulatedVerbs::SetMachine({});
  ExpectNoMistakes();
}

// Each pair uses the ports that both have.
TEST(VerbsJobTest, RanksMayHaveDifferentPorts) {
  SimulatedVerbs::SetMachine({.devices = 3});
  const SimulatedCounts before = SimulatedVerbs::Counts();
  ClusterConfig config = Ranks(3);
  config.algorithm = "ring";
  RunJob(
      config,
      [](const std::unique_ptr<Communicator>& comm) {
        for (const size_t count : {10, 100'000}) ExpectSum(comm, count);
        EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
      },
      nullptr, [](int rank) { return rank == 0   ? "sim0,sim1"
                                     : rank == 1 ? "sim1,sim2,sim0"
                                                 : "sim1"; });
  EXPECT_GT(BytesOf(0, before), 0u);
  EXPECT_GT(BytesOf(1, before), BytesOf(0, before));
  EXPECT_EQ(BytesOf(2, before), 0u) << "only one rank has it";
  SimulatedVerbs::SetMachine({});
  ExpectNoMistakes();
}

TEST(VerbsJobTest, ManySeedsOverTwoRailsSum) {
  SimulatedVerbs::SetMachine({.devices = 2});
  for (uint64_t seed = 1; seed <= Rounds(20, 1000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimulatedVerbs::Seed(seed);
    SimulatedVerbs::SetMachine({.devices = 2, .slow_device = static_cast<int>(seed % 3), .slowness = seed % 20 + 1});
    ClusterConfig config = Ranks(2 + static_cast<int>(seed % 2));
    config.slice_bytes = 4096;
    RunJob(
        config,
        [](const std::unique_ptr<Communicator>& comm) {
          for (const size_t count : {3, 20'000, 40, 5000}) ExpectSum(comm, count);
          EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
        },
        nullptr, [](int) { return "sim0,sim1"; });
    if (HasFailure()) return;
  }
  SimulatedVerbs::SetMachine({});
  SimulatedVerbs::Seed(1);
  ExpectNoMistakes();
}

// Either end of the link may be the first to tell, and both name the cause.
TEST(VerbsJobTest, AFailedRequestEndsTheCallOnAllRanksWithOneVerdict) {
  std::vector<std::string> messages(3);
  std::latch have_left_the_barrier(3);
  RunJob(Ranks(3), [&](const std::unique_ptr<Communicator>& comm) {
    ExpectSum(comm, 1000);
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
    have_left_the_barrier.arrive_and_wait();
    if (comm->rank() == 0) SimulatedVerbs::FailAfter(10, IBV_WC_RETRY_EXC_ERR);
    std::vector<float> data(1'000'000, 1);
    annulus_status_t status = ANNULUS_OK;
    for (int i = 0; i < 100 && status == ANNULUS_OK; ++i) {
      status = annulus_allreduce(Handle(comm), data.data(), data.data(), data.size(), ANNULUS_FLOAT32, ANNULUS_MAX);
    }
    EXPECT_EQ(status, ANNULUS_PEER_LOST);
    messages[static_cast<size_t>(comm->rank())] = LastMessage(Handle(comm));
  });
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_EQ(messages[0], messages[2]);
  EXPECT_NE(messages[0].find("did not answer"), std::string::npos) << messages[0];
  EXPECT_NE(messages[0].find("sim0, port 1"), std::string::npos) << messages[0];
}

}  // namespace
}  // namespace annulus
