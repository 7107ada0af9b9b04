// Configurations that were made in different environments, and what ranks find out about their hosts.

#include <annulus.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

// Sets environment variables, and unsets them at its end.
class Environment {
 public:
  ~Environment() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }
  void Set(const std::string& name, const std::string& value) {
    names_.push_back(name);
    ASSERT_EQ(setenv(name.c_str(), value.c_str(), 1), 0);
  }

 private:
  std::vector<std::string> names_;
};

constexpr const char* kTextVariables[] = {"ANNULUS_RENDEZVOUS", "ANNULUS_JOB_KEY", "ANNULUS_INTERFACE",
                                          "ANNULUS_HOST_ID"};

TEST(Config, KeepsItsTextsWhenTheEnvironmentChanges) {
  Environment environment;
  const auto init = [&environment](const std::string& which, annulus_config_t* config) {
    environment.Set("ANNULUS_RENDEZVOUS", "host-of-" + which + ":1234");
    environment.Set("ANNULUS_JOB_KEY", "a key of enough characters for " + which);
    environment.Set("ANNULUS_INTERFACE", "if-" + which);
    environment.Set("ANNULUS_HOST_ID", "id-" + which);
    environment.Set("ANNULUS_TRANSPORT", which == "first" ? "tcp" : "shm");
    environment.Set("ANNULUS_LOG", which == "first" ? "error" : "warn");
    ASSERT_EQ(annulus_config_init(config), ANNULUS_OK) << annulus_last_error_message();
  };
  const auto expect = [](const std::string& which, const annulus_config_t& config) {
    EXPECT_EQ(config.rendezvous, "host-of-" + which + ":1234");
    EXPECT_EQ(config.job_key, "a key of enough characters for " + which);
    EXPECT_EQ(config.interface_name, "if-" + which);
    EXPECT_EQ(config.host_id, "id-" + which);
    EXPECT_STREQ(config.transport, which == "first" ? "tcp" : "shm");
    EXPECT_STREQ(config.log_level, which == "first" ? "error" : "warn");
  };
  annulus_config_t first;
  annulus_config_t second;
  init("first", &first);
  expect("first", first);
  init("second", &second);
  for (const char* variable : kTextVariables) unsetenv(variable);
  expect("first", first);
  expect("second", second);
  annulus_config_t third;
  ASSERT_EQ(annulus_config_init(&third), ANNULUS_OK);
  EXPECT_STREQ(third.host_id, "");
  expect("first", first);
  expect("second", second);
}

// Joins `nranks` ranks, gives each rank's local rank and size, and sees that they work together.
struct Local {
  int rank = -1;
  int size = -1;
  bool operator==(const Local&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Local& local) {
  return out << local.rank << " of " << local.size << " here";
}

std::vector<Local> JoinAndSum(const std::vector<annulus_config_t>& configs) {
  const int n = static_cast<int>(configs.size());
  std::vector<Local> locals(n);
  ForEachRank(n, [&](int rank) {
    annulus_comm_t* comm = nullptr;
    ASSERT_EQ(annulus_comm_create(&configs[rank], &comm), ANNULUS_OK) << annulus_last_error_message();
    EXPECT_EQ(annulus_comm_local_rank(comm, &locals[rank].rank), ANNULUS_OK);
    EXPECT_EQ(annulus_comm_local_size(comm, &locals[rank].size), ANNULUS_OK);
    for (size_t count : {100, 20'000}) {
      Numbers out(count);
      EXPECT_EQ(Sum(comm, Contribution(rank, count, 0), &out), ANNULUS_OK) << LastError(comm).message;
      EXPECT_EQ(out, SumOfAll(n, count, 0));
    }
    EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
  });
  return locals;
}

class LocalRankTest : public testing::TestWithParam<std::string> {
 protected:
  ClusterConfig config() const {
    ClusterConfig config;
    config.nranks = 4;
    config.transport = GetParam();
    return config;
  }
};

TEST_P(LocalRankTest, IsTheRankWhenAllShareAHost) {
  const Cluster cluster(config());
  std::vector<annulus_config_t> configs;
  for (int rank = 0; rank < 4; ++rank) configs.push_back(cluster.Config(rank));
  EXPECT_EQ(JoinAndSum(configs), (std::vector<Local>{{0, 4}, {1, 4}, {2, 4}, {3, 4}}));
}

INSTANTIATE_TEST_SUITE_P(Links, LocalRankTest, testing::Values("shm", "tcp", "auto"),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

TEST(LocalRankOfTwoHostsTest, CountsTheRanksOfTheOwnHost) {
  ClusterConfig config;
  config.nranks = 4;
  const Cluster cluster(config);
  Environment environment;
  std::vector<annulus_config_t> configs;
  for (int rank = 0; rank < 4; ++rank) {
    environment.Set("ANNULUS_HOST_ID", rank % 2 == 0 ? "a" : "b");
    configs.push_back(cluster.Config(rank));
  }
  EXPECT_EQ(JoinAndSum(configs), (std::vector<Local>{{0, 2}, {0, 2}, {1, 2}, {1, 2}}));
}

TEST(LocalRankOfTwoHostsTest, HostsMayBeOfDifferentSize) {
  ClusterConfig config;
  config.nranks = 4;
  const Cluster cluster(config);
  const char* hosts[] = {"a", "b", "a", "a"};
  std::vector<annulus_config_t> configs;
  for (int rank = 0; rank < 4; ++rank) {
    configs.push_back(cluster.Config(rank));
    configs.back().host_id = hosts[rank];
  }
  EXPECT_EQ(JoinAndSum(configs), (std::vector<Local>{{0, 3}, {0, 1}, {1, 3}, {2, 3}}));
}

TEST(LocalRankOfTwoHostsTest, OneThatIsGivenIsBelieved) {
  ClusterConfig config;
  const Cluster cluster(config);
  std::vector<annulus_config_t> configs;
  for (int rank = 0; rank < 2; ++rank) {
    configs.push_back(cluster.Config(rank));
    configs.back().local_rank = 1 - rank;
    configs.back().local_size = 2;
  }
  EXPECT_EQ(JoinAndSum(configs), (std::vector<Local>{{1, 2}, {0, 2}}));
}

}  // namespace
}  // namespace annulus
