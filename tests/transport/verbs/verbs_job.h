// Jobs over verbs on the simulated provider: ranks that are threads of this process, each with a communicator.
//
// Threads: the functions given to a job are called on one thread per rank.
#pragma once

#include <annulus.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "collectives/api/config.h"
#include "collectives/calls/request_table.h"
#include "collectives/comm/communicator.h"
#include "collectives/reduce/memory_domains.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/memory/memory.h"
#include "transport/verbs/verbs.h"

namespace annulus {

inline std::unique_ptr<Transport> CreateSimulatedVerbs(const TransportConfig& config) {
  return CreateVerbsTransportOver(SimulatedVerbs::Api(), "", config);
}

// Verbs on the simulated provider.
inline TransportInfo SimulatedVerbsInfo() {
  TransportInfo info = kVerbsTransport;
  info.create = CreateSimulatedVerbs;
  return info;
}

inline annulus_comm_t* Handle(const std::unique_ptr<Communicator>& comm) {
  return reinterpret_cast<annulus_comm_t*>(comm.get());
}

struct VerbsJob {
  ClusterConfig ranks = {};
  TransportList transports = {};
  const MemoryRegistry* memory = nullptr;
  // Before a rank joins; null: nothing.
  std::function<void(int rank, Options* options)> before = nullptr;
  // Where buffers may lie; null: in host memory only.
  MemoryDomains* domains = nullptr;
  // Where the kernel tells of the machine; "": the real one.
  std::string sysfs = {};

  // Calls `use` with each rank's communicator, which is null where it could not be made for the reason `made`.
  template <class Use>
  void Try(Use use) const {
    const Cluster cluster(ranks);
    RequestTable requests;
    ForEachRank(ranks.nranks, [&](int rank) {
      Options options;
      const UserConfig given = cluster.Config(rank);
      ASSERT_TRUE(ToOptions(&given, ProcessVariable, &options).ok());
      if (before) before(rank, &options);
      std::unique_ptr<Communicator> comm;
      Resources resources{.requests = &requests, .memory = memory, .domains = domains, .transports = transports};
      if (!sysfs.empty()) resources.sysfs = sysfs;
      const Status made = Communicator::Create(options, resources, &comm);
      use(rank, comm, made);
    });
  }

  // The same where all can be made.
  template <class Body>
  void Run(Body body) const {
    Try([&body](int, const std::unique_ptr<Communicator>& comm, const Status& made) {
      ASSERT_TRUE(made.ok()) << made.ToString();
      body(comm);
    });
  }
};

}  // namespace annulus
