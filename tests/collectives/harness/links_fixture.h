// LinksTest: a test over real links, for each transport and number of ranks that its suite is instantiated with.
//
//   class MineTest : public LinksTest {};
//   TEST_P(MineTest, States) { Cluster(config()).Run(...); }
//   INSTANTIATE_TEST_SUITE_P(Links, MineTest, OverLinks(2, 3), LinksName);
//
// Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "tests/collectives/harness/cluster.h"
#include "tests/soak/rounds.h"

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

// What a sanitizer's build leaves out to be affordable: numbers of ranks but two and the next one, where a rank's
// neighbours are two,
template <class... Ranks>
auto RanksOf(Ranks... nranks) {
  std::vector<int> all = {nranks...};
  if (kSanitized) {
    int least = all.back();
    for (const int ranks : all) least = ranks > 2 ? std::min(least, ranks) : least;
    std::erase_if(all, [least](int ranks) { return ranks != 2 && ranks != least; });
  }
  return testing::ValuesIn(all);
}

// and every second kind of memory, or third, for the threads of most are the same.
inline auto MemoryOf(std::vector<const char*> all) {
  std::vector<const char*> kept;
  for (size_t i = 0; i < all.size(); i += kThreadSanitized ? 3 : kSanitized ? 2 : 1) kept.push_back(all[i]);
  return testing::ValuesIn(kept);
}

// Every transport with each of these numbers of ranks.
template <class... Ranks>
auto OverLinks(Ranks... nranks) {
  return testing::Combine(testing::Values("shm", "tcp"), RanksOf(nranks...), testing::Values("host"));
}

// The same with all buffers on a device without hardware,
template <class... Ranks>
auto OverSimLinks(Ranks... nranks) {
  return testing::Combine(testing::Values("shm", "tcp"), RanksOf(nranks...),
                          MemoryOf({"sim_wakes", "sim_sliced", "cuda_sliced", "cuda"}));
}

// or only the inputs, or only the outputs, or only those of some ranks; or the ranks work in different ways.
template <class... Ranks>
auto OverMixedLinks(Ranks... nranks) {
  return testing::Combine(
      testing::Values("shm", "tcp"), RanksOf(nranks...),
      MemoryOf({"sim_in_sliced", "sim_out_sliced", "cuda_out", "cuda_in", "cuda_some_sliced", "cuda_odd"}));
}

inline std::string LinksName(const testing::TestParamInfo<LinksParam>& info) {
  const std::string memory = std::get<2>(info.param);
  return std::get<0>(info.param) + std::to_string(std::get<1>(info.param)) + (memory == "host" ? "" : "_" + memory);
}

}  // namespace annulus
