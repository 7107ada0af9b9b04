// A transport that the library does not know, handed to a job: everything that it says of itself shows up, and no other
// file names it.
#include <annulus.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "collectives/api/config.h"
#include "collectives/calls/request_table.h"
#include "collectives/comm/communicator.h"
#include "collectives/comm/explain.h"
#include "collectives/comm/split.h"
#include "collectives/cost/job_costs.h"
#include "collectives/engine/memory_budget.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/transport/pipe/pipe.h"
#include "transport/tcp/tcp.h"

namespace annulus {
namespace {

constexpr const TransportInfo* kPipeAlone[] = {&kPipeTransport};
constexpr const TransportInfo* kPipeAndTcp[] = {&kPipeTransport, &kTcpTransport};
constexpr size_t kCount = 3 * 40'000;  // Elements: chunks are equal.

annulus_comm_t* Handle(const std::unique_ptr<Communicator>& comm) {
  return reinterpret_cast<annulus_comm_t*>(comm.get());
}

annulus_transport_counters_t Counters(const std::unique_ptr<Communicator>& comm, int index) {
  annulus_transport_counters_t counters{};
  counters.struct_bytes = sizeof counters;
  EXPECT_EQ(annulus_comm_transport_counters(Handle(comm), index, &counters), ANNULUS_OK);
  return counters;
}

void ExpectSum(const std::unique_ptr<Communicator>& comm, size_t count) {
  std::vector<float> data(count, static_cast<float>(comm->rank() + 1));
  ASSERT_EQ(annulus_allreduce(Handle(comm), data.data(), data.data(), count, ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK);
  const int nranks = comm->nranks();
  EXPECT_EQ(data, std::vector<float>(count, static_cast<float>(nranks * (nranks + 1) / 2)));
}

// Runs `body` on a thread for each rank, with a communicator over `transports`.
template <class Change, class Body>
void RunJob(const ClusterConfig& config, TransportList transports, Change change, Body body) {
  const Cluster cluster(config);
  RequestTable requests;
  ForEachRank(config.nranks, [&](int rank) {
    Options options;
    const UserConfig given = cluster.Config(rank);
    ASSERT_TRUE(ToOptions(&given, ProcessVariable, &options).ok());
    change(&options);
    std::unique_ptr<Communicator> comm;
    const Resources resources{.requests = &requests, .transports = transports};
    const Status made = Communicator::Create(options, resources, &comm);
    ASSERT_TRUE(made.ok()) << made.ToString();
    body(comm);
  });
}

void NoChange(Options*) {}

ClusterConfig Ranks(int nranks) {
  ClusterConfig config;
  config.nranks = nranks;
  return config;
}

TEST(PipeJobTest, SumsAndIsCountedUnderItsName) {
  constexpr int kRanks = 3;
  RunJob(Ranks(kRanks), kPipeAlone, NoChange, [](const std::unique_ptr<Communicator>& comm) {
    ExpectSum(comm, kCount);
    const annulus_transport_counters_t pipe = Counters(comm, 0);
    const uint64_t ring_bytes = 2 * (kRanks - 1) * (kCount / kRanks) * sizeof(float);
    EXPECT_STREQ(pipe.transport, "pipe");
    EXPECT_EQ(pipe.sent_bytes, ring_bytes);
    EXPECT_EQ(pipe.received_bytes, ring_bytes);
    EXPECT_EQ(pipe.retransmits, 0u);
    EXPECT_STREQ(Counters(comm, 1).transport, "");
    annulus_peer_counters_t next{};
    next.struct_bytes = sizeof next;
    ASSERT_EQ(annulus_comm_peer_counters(Handle(comm), (comm->rank() + 1) % kRanks, &next), ANNULUS_OK);
    EXPECT_STREQ(next.transport, "pipe");
    ExpectSum(comm, 2);
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
  });
}

TEST(PipeJobTest, ItsCostsAreThoseOfTheJob) {
  RunJob(Ranks(2), kPipeAlone, NoChange, [](const std::unique_ptr<Communicator>& comm) {
    const LinkCosts costs = NominalLinks(comm->topology()).near;
    EXPECT_EQ(costs.latency_s, kPipeTransport.costs({true, 1}).latency_s);
    EXPECT_EQ(costs.message_s, kPipeTransport.costs({true, comm->topology().ranks_per_core}).message_s);
    EXPECT_TRUE(comm->topology().by_system_calls);
    const std::string told = ExplainJob(ExplainInputOf(Handle(comm)));
    EXPECT_NE(told.find("#   pipes: latency 4.321 us"), std::string::npos) << told;
    EXPECT_NE(ExplainLinks(Handle(comm)).find(": pipe"), std::string::npos);
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
  });
  std::optional<ExplainInput> input;
  ASSERT_TRUE(HypotheticalInput(4, 1, Options(), kPipeAlone, &input).ok());
  const std::string told = ExplainJob(*input);
  EXPECT_NE(told.find("#   pipes: latency 4.321 us"), std::string::npos) << told;
}

TEST(PipeJobTest, ItsMemoryIsBudgeted) {
  PlanSettings least;
  least.slots = 4;
  least.largest_slice_bytes = 16 * 1024;
  const size_t budget = MostMemory(4, least, {kPipeAlone, TransportChoice::kAuto, {}});
  EXPECT_LT(budget, MostMemory(4, least));  // TCP takes more.
  const auto limit = [budget](Options* options) { options->memory_bytes = static_cast<int64_t>(budget); };
  RunJob(Ranks(4), kPipeAlone, limit, [budget](const std::unique_ptr<Communicator>& comm) {
    ExpectSum(comm, kCount);
    EXPECT_EQ(comm->plan().slots, 4);
    TransportConfig config;
    config.slots = 4;
    config.slot_bytes = SlotBytes(comm->plan());
    const MemoryUse use = comm->Memory();
    constexpr size_t kLinks = 2 * 3;  // To each peer one for collectives, one for messages.
    EXPECT_EQ(use.staging + use.links, kLinks * kPipeTransport.link_memory(config));
    EXPECT_LE(use.total(), budget);
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
  });
}

TEST(PipeJobTest, MeasuredCostsAreKeptUnderItsName) {
  const std::string path = testing::TempDir() + "pipe_tuning.json";
  std::remove(path.c_str());
  const auto measured = [&path](Options* options) {
    options->tuning = Tuning::kMeasured;
    if (options->rank == 0) options->tuning_file = path;
  };
  RunJob(Ranks(2), kPipeAlone, measured, [](const std::unique_ptr<Communicator>& comm) { ExpectSum(comm, 1000); });
  const auto job = nlohmann::json::parse(std::ifstream(path))["job"];
  EXPECT_EQ(job["near"], "pipe");
  EXPECT_FALSE(job.contains("tcp_sockets"));
  RunJob(Ranks(2), kPipeAlone, measured, [](const std::unique_ptr<Communicator>& comm) {
    EXPECT_EQ(comm->choice_source(), "the tuning file of rank 0");
    ExpectSum(comm, 1000);
  });
}

TEST(PipeJobTest, LinksRanksOfOneHostBesideAnotherTransport) {
  ClusterConfig config = Ranks(4);
  config.hosts = 2;
  RunJob(config, kPipeAndTcp, NoChange, [](const std::unique_ptr<Communicator>& comm) {
    EXPECT_EQ(comm->topology().near, &kPipeTransport);
    EXPECT_EQ(comm->topology().far, &kTcpTransport);
    ExpectSum(comm, kCount);
    std::vector<int32_t> all(4 * 100), out(4 * 100);
    EXPECT_EQ(annulus_alltoall(Handle(comm), all.data(), out.data(), 100, ANNULUS_INT32), ANNULUS_OK);
    EXPECT_STREQ(Counters(comm, 1).transport, "tcp");
    EXPECT_GT(Counters(comm, 0).sent_bytes, 0u);
    EXPECT_GT(Counters(comm, 1).sent_bytes, 0u);
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
  });
}

TEST(PipeJobTest, SplitsOfAJobHaveItsTransports) {
  RunJob(Ranks(4), kPipeAlone, NoChange, [](const std::unique_ptr<Communicator>& comm) {
    std::unique_ptr<Communicator> half;
    const Status made = Split(comm.get(), comm->rank() % 2, 0, &half);
    ASSERT_TRUE(made.ok()) << made.ToString();
    ExpectSum(half, 1000);
    EXPECT_STREQ(Counters(half, 0).transport, "pipe");
    EXPECT_GT(Counters(half, 0).sent_bytes, 0u);
  });
}

TEST(PipeJobTest, ATransportThatTheListLacksIsRefused) {
  ClusterConfig config = Ranks(2);
  config.transport = "tcp";
  const Cluster cluster(config);
  Options options;
  const UserConfig given = cluster.Config(0);
  ASSERT_TRUE(ToOptions(&given, ProcessVariable, &options).ok());
  std::unique_ptr<Communicator> comm;
  RequestTable requests;
  const Resources resources{.requests = &requests, .transports = kPipeAlone};
  const Status status = Communicator::Create(options, resources, &comm);
  EXPECT_EQ(status.message(),
            "transport (ANNULUS_TRANSPORT) is \"tcp\", which is not among the transports of this job");
}

}  // namespace
}  // namespace annulus
