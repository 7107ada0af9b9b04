// LinksTest: a test over real links, for each transport and number of ranks that its suite is instantiated with.
//
//   class MineTest : public LinksTest {};
//   TEST_P(MineTest, States) { Cluster(config()).Run(...); }
//   INSTANTIATE_TEST_SUITE_P(Links, MineTest, OverLinks(2, 3), LinksName);
//
// Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/collectives/harness/cluster.h"

namespace annulus {

using LinksParam = std::tuple<const char*, int, const char*>;  // Transport, ranks, memory of buffers (UserMemory).

class LinksTest : public testing::TestWithParam<LinksParam> {
 protected:
  int n() const { return std::get<1>(GetParam()); }
  ClusterConfig config() const {
    ClusterConfig config;
    config.transport = std::get<0>(GetParam());
    config.nranks = n();
    config.memory = std::get<2>(GetParam());
    return config;
  }
};

// Every transport with each of these numbers of ranks.
template <class... Ranks>
auto OverLinks(Ranks... nranks) {
  return testing::Combine(testing::Values("shm", "tcp"), testing::Values(nranks...), testing::Values("host"));
}

// The same with all buffers on a device without hardware,
template <class... Ranks>
auto OverSimLinks(Ranks... nranks) {
  return testing::Combine(testing::Values("shm", "tcp"), testing::Values(nranks...),
                          testing::Values("sim_sliced", "sim_wakes", "cuda", "cuda_sliced"));
}

// or only the inputs, or only the outputs, or only those of some ranks; or the ranks work in different ways.
template <class... Ranks>
auto OverMixedLinks(Ranks... nranks) {
  return testing::Combine(
      testing::Values("shm", "tcp"), testing::Values(nranks...),
      testing::Values("sim_in_sliced", "sim_out_sliced", "cuda_in", "cuda_out", "cuda_odd", "cuda_some_sliced"));
}

inline std::string LinksName(const testing::TestParamInfo<LinksParam>& info) {
  const std::string memory = std::get<2>(info.param);
  return std::get<0>(info.param) + std::to_string(std::get<1>(info.param)) + (memory == "host" ? "" : "_" + memory);
}

}  // namespace annulus
