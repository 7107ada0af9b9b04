// What annulus_comm_memory says: the job's shared memory to the byte, and a budget that is kept.

#include <annulus.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/engine/memory_budget.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/soak/rounds.h"
#include "transport/select/transport_options.h"

namespace annulus {
namespace {

annulus_memory_t Memory(annulus_comm_t* comm) {
  annulus_memory_t memory{};
  memory.struct_bytes = sizeof memory;
  EXPECT_EQ(annulus_comm_memory(comm, &memory), ANNULUS_OK);
  EXPECT_EQ(memory.total, memory.staging + memory.links + memory.work + memory.requests);
  return memory;
}

// Bytes of this process's mappings of links' memory files. Both ends map each of them.
uint64_t MappedBytes() {
  std::ifstream maps("/proc/self/maps");
  uint64_t sum = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:annulus (deleted)") == std::string::npos) continue;
    unsigned long begin = 0, end = 0;
    EXPECT_EQ(std::sscanf(line.c_str(), "%lx-%lx", &begin, &end), 2);
    sum += end - begin;
  }
  return sum;
}

// Calls every kind once with data of several slices, so that everything that is made late has been made.
void UseAll(annulus_comm_t* comm, int rank, int nranks) {
  std::vector<float> in(static_cast<size_t>(nranks) * 100000), out(in.size());
  ASSERT_EQ(annulus_allreduce(comm, in.data(), out.data(), in.size(), ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK);
  ASSERT_EQ(annulus_alltoall(comm, in.data(), out.data(), 100000, ANNULUS_FLOAT32), ANNULUS_OK);
  for (int step = 1; step < nranks; ++step) {
    annulus_request_t* request = nullptr;
    ASSERT_EQ(annulus_send_async(comm, in.data(), 1000, ANNULUS_FLOAT32, (rank + step) % nranks, &request), ANNULUS_OK);
    ASSERT_EQ(annulus_recv(comm, out.data(), 1000, ANNULUS_FLOAT32, (rank + nranks - step) % nranks), ANNULUS_OK);
    ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
    annulus_request_free(request);
  }
}

class MemoryTest : public testing::TestWithParam<int> {};

TEST_P(MemoryTest, TheSumOverRanksIsWhatTheMappingsTake) {
  ClusterConfig config;
  config.nranks = GetParam();
  config.transport = "shm";
  std::mutex mu;
  uint64_t sum = 0;
  uint64_t mapped = 0;
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    UseAll(comm, rank, config.nranks);
    const annulus_memory_t memory = Memory(comm);
    EXPECT_EQ(memory.requests, 0u);
    const uint64_t links = static_cast<uint64_t>(config.nranks == 2 ? 2 : 2 * (config.nranks - 1));
    EXPECT_EQ(memory.staging, links * 8 * 256 * 1024);
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
    if (rank == 0) mapped = MappedBytes();
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
    std::lock_guard<std::mutex> lock(mu);
    // Cells and schedules are this process's own; the rest of `links` lies in memory files.
    sum += memory.staging + memory.links - links * 8 * 256;
    RecordProperty("total_bytes_of_rank_" + std::to_string(rank), static_cast<int>(memory.total));
  });
  EXPECT_LE(sum, mapped / 2);
  // These files are laid out at page borders, those of 2 MiB pages at theirs: that padding alone is not counted.
  const uint64_t files = static_cast<uint64_t>(config.nranks) * static_cast<uint64_t>(config.nranks - 1);
  EXPECT_GE(sum + files * (size_t{2} << 20), mapped / 2);
}

PossibleLinks LinksOf(std::string_view transport) {
  PossibleLinks links;
  const auto word = std::ranges::find(kTransportWords, transport);
  links.allowed = static_cast<TransportChoice>(word - std::begin(kTransportWords));
  return links;
}

TEST_P(MemoryTest, ABudgetIsKeptByWhateverIsCalled) {
  struct Kind {
    const char* transport;
    int reconnect_ms = 0;
    int tcp_sockets = 0;
  };
  for (const Kind& kind : {Kind{"shm"}, Kind{"tcp"}, Kind{"tcp", 1000}, Kind{"tcp", 1000, 3}}) {
    PlanSettings least;
    least.slots = 4;
    least.largest_slice_bytes = 16 * 1024;
    PossibleLinks possible = LinksOf(kind.transport);
    possible.settings.Set("reconnect_ms", kind.reconnect_ms);
    possible.settings.Set("tcp_sockets", kind.tcp_sockets);
    const size_t most = MostMemory(GetParam(), least, possible);
    for (const size_t budget : {most, 2 * most}) {
      ClusterConfig config;
      config.nranks = GetParam();
      config.transport = kind.transport;
      config.reconnect_ms = kind.reconnect_ms;
      config.tcp_sockets = kind.tcp_sockets;
      config.memory_bytes = static_cast<int64_t>(budget);
      Cluster(config).Run([&config, budget](annulus_comm_t* comm, int rank) {
        UseAll(comm, rank, config.nranks);
        const annulus_memory_t memory = Memory(comm);
        EXPECT_EQ(memory.budget, budget);
        EXPECT_LE(memory.total, budget);
        EXPECT_GT(memory.staging, 0u);
        ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
      });
    }
  }
}

TEST(MemoryBudgetTest, IsKeptByTwoLevelsToo) {
  PlanSettings least;
  least.slots = 4;
  least.largest_slice_bytes = 16 * 1024;
  ClusterConfig config;
  config.nranks = 4;
  config.hosts = 2;
  const size_t budget = MostMemory(4, least);
  config.memory_bytes = static_cast<int64_t>(budget);
  Cluster(config).Run([&config, budget](annulus_comm_t* comm, int rank) {
    UseAll(comm, rank, config.nranks);
    EXPECT_LE(Memory(comm).total, budget);
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
}

// Eight ranks' links are as four ranks', and more of them.
const std::vector<int> kNumbersOfRanks = kSanitized ? std::vector<int>{2, 4} : std::vector<int>{2, 4, 8};
INSTANTIATE_TEST_SUITE_P(Ranks, MemoryTest, testing::ValuesIn(kNumbersOfRanks));

TEST(MemoryBudgetTest, RequestsBeyondTheBudgetAreRefusedAndFreedOnesMakeRoom) {
  PlanSettings least;
  least.slots = 4;
  least.largest_slice_bytes = 16 * 1024;
  ClusterConfig config;
  config.nranks = 1;  // Several would reach their limits at different calls.
  config.memory_bytes = static_cast<int64_t>(MostMemory(1, least)) + 100000;
  Cluster(config).Run([&config](annulus_comm_t* comm, int) {
    std::vector<annulus_request_t*> requests;
    annulus_status_t status = ANNULUS_OK;
    while (status == ANNULUS_OK && requests.size() < 100000) {
      annulus_request_t* request = nullptr;
      status = annulus_barrier_async(comm, &request);
      if (status != ANNULUS_OK) break;
      requests.push_back(request);
      EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
    }
    EXPECT_EQ(status, ANNULUS_OUT_OF_MEMORY);
    annulus_error_t error{};
    error.struct_bytes = sizeof error;
    ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
    EXPECT_NE(std::string(error.message).find("ANNULUS_MEMORY_BYTES"), std::string::npos) << error.message;
    EXPECT_LE(Memory(comm).total, static_cast<uint64_t>(config.memory_bytes));
    for (annulus_request_t* request : requests) EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
    EXPECT_EQ(Memory(comm).requests, 0u);
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
}

TEST(MemoryBudgetTest, TheLeastThatALoneRankIsToldIsEnough) {
  PlanSettings least;
  least.slots = 4;
  least.largest_slice_bytes = 16 * 1024;
  ClusterConfig config;
  config.nranks = 1;
  config.memory_bytes = static_cast<int64_t>(MostMemory(1, least));
  Cluster(config).Run([&config](annulus_comm_t* comm, int) {
    annulus_request_t* request = nullptr;
    ASSERT_EQ(annulus_barrier_async(comm, &request), ANNULUS_OK);
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
    EXPECT_LE(Memory(comm).total, static_cast<uint64_t>(config.memory_bytes));
    EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
  });
}

TEST(MemoryBudgetTest, AGroupsPartsAreCountedBeforeTheyAreMade) {
  PlanSettings least;
  least.slots = 4;
  least.largest_slice_bytes = 16 * 1024;
  ClusterConfig config;
  config.nranks = 2;
  config.memory_bytes = static_cast<int64_t>(MostMemory(2, least)) + 100000;
  Cluster(config).Run([](annulus_comm_t* comm, int) {
    std::vector<float> data(4 * 1000);
    Calls calls;
    const auto add = [&] { return calls.Allreduce(data.data(), data.data(), 4, ANNULUS_FLOAT32, ANNULUS_SUM); };
    while (calls.size() < 100000) add();
    annulus_request_t* all = nullptr;
    EXPECT_EQ(calls.Submit(comm, &all), ANNULUS_OUT_OF_MEMORY) << "all or none";
    const uint64_t before = Memory(comm).total;
    calls = Calls();
    for (size_t i = 0; i < 100; ++i) {
      float* const at = data.data() + 4 * i;
      calls.Allreduce(at, at, 4, ANNULUS_FLOAT32, ANNULUS_SUM);
    }
    EXPECT_EQ(Memory(comm).total, before) << "nothing stays of the refused group";
    ASSERT_EQ(calls.Submit(comm, &all), ANNULUS_OK);
    const annulus_memory_t memory = Memory(comm);
    EXPECT_LE(memory.total, memory.budget);
    EXPECT_EQ(annulus_request_wait(all, -1), ANNULUS_OK);
    EXPECT_EQ(annulus_request_free(all), ANNULUS_OK);
  });
}

TEST(MemoryBudgetTest, MoreSocketsThanTheBudgetHasRoomForAreAnError) {
  PlanSettings least;
  least.slots = 4;
  least.largest_slice_bytes = 16 * 1024;
  PossibleLinks wide;
  wide.settings.Set("tcp_sockets", 16);
  EXPECT_GT(MostMemory(2, least, wide), MostMemory(2, least));
  EXPECT_TRUE(FitMemory(2, MostMemory(2, least, wide), wide, &least).ok());
  EXPECT_FALSE(FitMemory(2, MostMemory(2, least, wide) - 1, wide, &least).ok());
}

// Links that resume keep copies of what they send, as much as their slots allow. What `auto` may choose counts too:
// over verbs, with what they need to go on over TCP.
TEST(MemoryBudgetTest, LinksThatResumeNeedLittleMore) {
  PlanSettings least;
  least.slots = 4;
  least.largest_slice_bytes = 16 * 1024;
  const PossibleLinks resuming = LinksOf("tcp");
  PossibleLinks ending = resuming;
  ending.settings.Set("reconnect_ms", 0);
  const size_t without = MostMemory(2, least, ending);
  const size_t with = MostMemory(2, least, resuming);
  RecordProperty("least_bytes_of_two_ranks", static_cast<int>(with));
  EXPECT_GT(with, without);
  EXPECT_LT(with, size_t{820'000});
  EXPECT_TRUE(FitMemory(2, with, resuming, &least).ok());
  EXPECT_GT(MostMemory(2, least), with);
  EXPECT_LT(MostMemory(2, least), size_t{1'000'000});
}

TEST(MemoryBudgetTest, SlotsShrinkStepByStepAndTooLittleIsAnError) {
  PlanSettings settings;
  ASSERT_TRUE(FitMemory(8, 0, {}, &settings).ok());
  EXPECT_EQ(settings.slots, 8);
  size_t before = MostMemory(8, settings);
  ASSERT_TRUE(FitMemory(8, before, {}, &settings).ok());
  EXPECT_EQ(settings.largest_slice_bytes, kLargestSliceBytes);
  while (settings.slots > 4 || settings.largest_slice_bytes > 16 * 1024) {
    PlanSettings smaller = settings;
    ASSERT_TRUE(FitMemory(8, before - 1, {}, &smaller).ok());
    ASSERT_LT(MostMemory(8, smaller), before);
    before = MostMemory(8, smaller);
    settings = smaller;
  }
  const Status status = FitMemory(8, before - 1, {}, &settings);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find(std::to_string(before)), std::string::npos) << status.ToString();
}

TEST(MemoryBudgetTest, ATooSmallBudgetNamesTheLeast) {
  ClusterConfig config;
  config.memory_bytes = 5000;
  const Cluster cluster(config);
  UserConfig c = cluster.Config(0);
  annulus_comm_t* comm = nullptr;
  EXPECT_EQ(annulus_comm_create(&c, &comm), ANNULUS_INVALID_ARGUMENT);
  const std::string message = LastMessage();
  EXPECT_NE(message.find("ANNULUS_MEMORY_BYTES) is 5000, but 2 ranks need at least"), std::string::npos) << message;
}

}  // namespace
}  // namespace annulus
