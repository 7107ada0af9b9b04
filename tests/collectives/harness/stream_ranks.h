// What tests of calls in streams and in graphs share: ranks of one process on the stand-in for CUDA's driver, the
// verdict that each has, and what must be so in the end.
//
// Threads: any.
#pragma once

#include <annulus.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/collectives/api/stream_user.h"
#include "tests/collectives/harness/cluster.h"

namespace annulus {

inline ClusterConfig StreamRanks(int nranks, int64_t timeout_ms = ClusterConfig().timeout_ms) {
  LoadDriver();
  ClusterConfig config;
  config.nranks = nranks;
  config.timeout_ms = timeout_ms;
  return config;
}

inline annulus_error_t Verdict(const annulus_comm_t* comm) {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  EXPECT_EQ(annulus_comm_verdict(comm, &error), ANNULUS_OK);
  return error;
}

// All work ends, and nothing was done that CUDA forbids.
inline void ExpectNothingWrong() {
  EXPECT_TRUE(ComesTrue([] { return LoadDriver()->Counts().pending == 0; }));
  EXPECT_EQ(LoadDriver()->Violations(), std::vector<std::string>());
}

}  // namespace annulus
