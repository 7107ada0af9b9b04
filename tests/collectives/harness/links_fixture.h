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

using LinksParam = std::tuple<const char*, int>;  // Transport, ranks.

class LinksTest : public testing::TestWithParam<LinksParam> {
 protected:
  int n() const { return std::get<1>(GetParam()); }
  ClusterConfig config() const {
    ClusterConfig config;
    config.transport = std::get<0>(GetParam());
    config.nranks = n();
    return config;
  }
};

// Every transport with each of these numbers of ranks.
template <class... Ranks>
auto OverLinks(Ranks... nranks) {
  return testing::Combine(testing::Values("shm", "tcp"), testing::Values(nranks...));
}

inline std::string LinksName(const testing::TestParamInfo<LinksParam>& info) {
  return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
}

}  // namespace annulus
