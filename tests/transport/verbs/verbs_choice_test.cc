// Jobs that may use any transport, verbs on the simulated provider included: which links they get, on all ranks alike,
// and why no better ones.
#include <annulus.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/comm/communicator.h"
#include "collectives/comm/explain.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/transport/verbs/verbs_job.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/select/select.h"

namespace annulus {
namespace {

std::unique_ptr<Transport> CreateButNotOnRank1(const TransportConfig& config) {
  if (config.rank == 1) return CreateVerbsTransportOver(nullptr, "the card was sold", config);
  return CreateSimulatedVerbs(config);
}

// Four ranks, 0 and 2 on one pretended host, 1 and 3 on another.
struct Job {
  std::string transport = "auto";
  bool encrypts = false;
  std::unique_ptr<Transport> (*create)(const TransportConfig& config) = CreateSimulatedVerbs;
  std::function<void(const std::unique_ptr<Communicator>& comm, const Status& made)> use;

  void Run() const {
    std::vector<TransportInfo> infos;
    for (const TransportInfo* each : Transports()) infos.push_back(*each);
    std::vector<const TransportInfo*> list;
    for (TransportInfo& each : infos) {
      if (each.name == std::string("verbs")) each.create = create;
      list.push_back(&each);
    }
    ClusterConfig config;
    config.nranks = 4;
    config.hosts = 2;
    config.transport = transport;
    const auto before = [this](int, Options* options) {
      if (encrypts) options->encrypt = Encryption::kRequired;
    };
    VerbsJob{.ranks = config, .transports = list, .before = before}.Try(
        [this](int, const std::unique_ptr<Communicator>& comm, const Status& made) { use(comm, made); });
  }
};

std::string TransportTo(const std::unique_ptr<Communicator>& comm, int peer) { return comm->ReadPeer(peer).transport; }

// Each pair of neighbours has one of these links, and the sums are right.
void ExpectLinks(const std::unique_ptr<Communicator>& comm, const Status& made,
                 const std::function<std::string(int rank, int peer)>& expected) {
  ASSERT_TRUE(made.ok()) << made.ToString();
  for (int peer = 0; peer < comm->nranks(); ++peer) {
    if (TransportTo(comm, peer).empty()) continue;
    EXPECT_EQ(TransportTo(comm, peer), expected(comm->rank(), peer)) << comm->rank() << " to " << peer;
  }
  std::vector<float> data(50'000, 1);
  ASSERT_EQ(annulus_allreduce(Handle(comm), data.data(), data.data(), data.size(), ANNULUS_FLOAT32, ANNULUS_SUM),
            ANNULUS_OK)
      << LastMessage(Handle(comm));
  EXPECT_EQ(data, std::vector<float>(data.size(), 4));
  EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
}

bool AreOnOneHost(int rank, int peer) { return rank % 2 == peer % 2; }

class VerbsChoiceTest : public ::testing::Test {
 protected:
  ~VerbsChoiceTest() override {
    SimulatedVerbs::SetMachine({});
    EXPECT_EQ(SimulatedVerbs::Counts().objects, 0u);
  }
};

TEST_F(VerbsChoiceTest, SharedMemoryIsTakenOnAHostAndVerbsBetweenHosts) {
  Job{.use = [](const auto& comm, const Status& made) {
    ExpectLinks(comm, made, [](int rank, int peer) { return AreOnOneHost(rank, peer) ? "shm" : "verbs"; });
    EXPECT_EQ(std::string(comm->topology().far->name), "verbs");
    EXPECT_EQ(ExplainLinks(Handle(comm)).find("(verbs"), std::string::npos) << ExplainLinks(Handle(comm));
  }}.Run();
}

TEST_F(VerbsChoiceTest, ARankWithoutADeviceHasTcpLinksAndSaysWhy) {
  Job{.create = CreateButNotOnRank1,
      .use =
          [](const auto& comm, const Status& made) {
            ExpectLinks(comm, made, [](int rank, int peer) {
              if (AreOnOneHost(rank, peer)) return "shm";
              return rank == 1 || peer == 1 ? "tcp" : "verbs";
            });
            EXPECT_EQ(std::string(comm->topology().far->name), "tcp");
            if (comm->rank() != 0 || TransportTo(comm, 1).empty()) return;
            const std::string told = ExplainLinks(Handle(comm));
            EXPECT_NE(told.find("rank 1: tcp (verbs is not usable at rank 1: the card was sold)"), std::string::npos)
                << told;
          }}
      .Run();
}

TEST_F(VerbsChoiceTest, WhatSendsInClearIsNotTakenWhereEncryptionIsRequired) {
  Job{.encrypts = true,
      .use =
          [](const auto& comm, const Status& made) {
            ExpectLinks(comm, made, [](int rank, int peer) { return AreOnOneHost(rank, peer) ? "shm" : "tcp"; });
            EXPECT_NE(ExplainJob(ExplainInputOf(Handle(comm))).find("verbs is not used: it sends in clear"),
                      std::string::npos);
          }}
      .Run();
}

}  // namespace
}  // namespace annulus
