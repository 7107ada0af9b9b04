// Configurations that were made in different environments, and what ranks find out about their hosts.

#include <annulus.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"
#include "tests/collectives/harness/user_config.h"

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

constexpr uint32_t kBoth = ANNULUS_FROM_ENVIRONMENT | ANNULUS_FROM_LAUNCHER;

// The value of a setting; an error's message where there is none.
std::string ValueOf(const annulus_config_t* config, const char* name) {
  char value[256];
  const annulus_status_t status = annulus_config_value(config, name, value, sizeof value);
  return status == ANNULUS_OK ? value : LastMessage();
}

TEST(ConfigTest, AFieldGoesBeforeASettingAVariableALauncherAndTheDefault) {
  Environment environment;
  UserConfig config;
  EXPECT_EQ(ValueOf(&config, "timeout_ms"), "300000");
  EXPECT_EQ(ValueOf(&config, "local_rank"), "-1");
  for (const char* variable : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) environment.Set(variable, "2");
  environment.Set("WORLD_SIZE", "5");
  EXPECT_EQ(ValueOf(&config, "local_rank"), "2");
  environment.Set("ANNULUS_LOCAL_RANK", "3");
  environment.Set("ANNULUS_TIMEOUT_MS", "4000");
  EXPECT_EQ(ValueOf(&config, "local_rank"), "3");
  EXPECT_EQ(ValueOf(&config, "timeout_ms"), "4000");
  config.Set("timeout_ms", 5000);
  config.Set("local_rank", 4);
  EXPECT_EQ(ValueOf(&config, "local_rank"), "4");
  EXPECT_EQ(ValueOf(&config, "timeout_ms"), "5000");
  config.Set("timeout_ms", 5001);
  EXPECT_EQ(ValueOf(&config, "timeout_ms"), "5001") << "the latest of a name counts";
  config.timeout_ms = 6000;
  config.local_rank = 0;
  EXPECT_EQ(ValueOf(&config, "local_rank"), "0");
  EXPECT_EQ(ValueOf(&config, "timeout_ms"), "6000");
  EXPECT_EQ(ValueOf(&config, "rank"), "2") << "what the program leaves open is the launcher's";
  EXPECT_EQ(ValueOf(nullptr, "rank"), "2") << "no config stands for both sources";
}

TEST(ConfigTest, ASettingTurnsOffWhatTheEnvironmentTurnsOnAndTheFieldCannot) {
  Environment environment;
  environment.Set("ANNULUS_INSECURE", "1");
  UserConfig config;
  config.insecure = 0;
  EXPECT_EQ(ValueOf(&config, "insecure"), "1");
  config.Set("insecure", 0);
  EXPECT_EQ(ValueOf(&config, "insecure"), "0");
}

TEST(ConfigTest, OnlyTheChosenSourcesAreRead) {
  Environment environment;
  environment.Set("RANK", "1");
  environment.Set("WORLD_SIZE", "3");
  environment.Set("ANNULUS_CHANNELS", "7");
  const auto values = [](uint32_t sources) {
    const UserConfig config(sources);
    return ValueOf(&config, "rank") + " " + ValueOf(&config, "channels");
  };
  EXPECT_EQ(values(0), "-1 1");
  EXPECT_EQ(values(ANNULUS_FROM_ENVIRONMENT), "-1 7");
  EXPECT_EQ(values(ANNULUS_FROM_LAUNCHER), "1 1");
  EXPECT_EQ(values(kBoth), "1 7");
  annulus_config_t config;
  EXPECT_EQ(annulus_config_init(&config, sizeof config, 4), ANNULUS_UNSUPPORTED);
}

// A test runner of many ranks sets WORLD_SIZE for its own use.
TEST(ConfigTest, AProgramThatCountsItsRanksNeedsNoLauncher) {
  Environment environment;
  environment.Set("WORLD_SIZE", "3");
  environment.Set("ANNULUS_SIZE", "8");
  UserConfig config;
  EXPECT_NE(ValueOf(&config, "size").find("ANNULUS_RANK is not"), std::string::npos) << ValueOf(&config, "size");
  config.rank = 0;
  config.size = 1;
  EXPECT_EQ(ValueOf(&config, "size"), "1");
  annulus_comm_t* comm = nullptr;
  EXPECT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
  EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
}

TEST(ConfigTest, AnUnknownSettingIsRefusedByName) {
  UserConfig config;
  config.Set("chanels", 2);
  EXPECT_EQ(ValueOf(&config, "rank"), "unknown setting chanels (is channels meant?)");
  UserConfig nameless;
  const char* const settings[] = {"channels", nullptr};
  nameless.settings = settings;
  EXPECT_EQ(ValueOf(&nameless, "rank"), "settings has \"channels\"; it must have the form name=value");
  UserConfig wrong;
  wrong.Set("channels", "many");
  EXPECT_EQ(ValueOf(&wrong, "rank"), "channels is \"many\"; allowed: a whole number from 1 to 16");
  EXPECT_EQ(ValueOf(nullptr, "colour"), "unknown setting colour");
}

TEST(ConfigTest, TheKeyIsNotGivenOut) {
  UserConfig config;
  config.job_key = "a key of enough characters";
  EXPECT_EQ(ValueOf(&config, "job_key"), "job_key is a secret, which is not given out");
  config.job_key = "short";
  EXPECT_EQ(ValueOf(&config, "rank").find("short"), std::string::npos) << ValueOf(&config, "rank");
  config.job_key = nullptr;
  config.Set("job_key", "small");
  EXPECT_EQ(ValueOf(&config, "rank").find("small"), std::string::npos) << ValueOf(&config, "rank");
}

TEST(ConfigTest, AValueThatDoesNotFitIsRefused) {
  char value[4];
  EXPECT_EQ(annulus_config_value(nullptr, "transport", value, sizeof value), ANNULUS_INVALID_ARGUMENT);
  EXPECT_EQ(LastMessage(), "value_bytes is 4; the value of transport takes 5");
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

std::vector<Local> JoinAndSum(const std::vector<UserConfig>& configs) {
  const int n = static_cast<int>(configs.size());
  std::vector<Local> locals(n);
  ForEachRank(n, [&](int rank) {
    annulus_comm_t* comm = nullptr;
    ASSERT_EQ(annulus_comm_create(&configs[rank], &comm), ANNULUS_OK) << LastMessage();
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
  std::vector<UserConfig> configs;
  for (int rank = 0; rank < 4; ++rank) configs.push_back(cluster.Config(rank));
  EXPECT_EQ(JoinAndSum(configs), (std::vector<Local>{{0, 4}, {1, 4}, {2, 4}, {3, 4}}));
}

INSTANTIATE_TEST_SUITE_P(Links, LocalRankTest, testing::Values("shm", "tcp", "auto"),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

TEST(LocalRankOfTwoHostsTest, CountsTheRanksOfTheOwnHost) {
  ClusterConfig config;
  config.nranks = 4;
  const Cluster cluster(config);
  std::vector<UserConfig> configs;
  for (int rank = 0; rank < 4; ++rank) {
    configs.push_back(cluster.Config(rank));
    configs.back().Set("host_id", rank % 2 == 0 ? "a" : "b");
  }
  EXPECT_EQ(JoinAndSum(configs), (std::vector<Local>{{0, 2}, {0, 2}, {1, 2}, {1, 2}}));
}

TEST(LocalRankOfTwoHostsTest, HostsMayBeOfDifferentSize) {
  ClusterConfig config;
  config.nranks = 4;
  const Cluster cluster(config);
  const char* hosts[] = {"a", "b", "a", "a"};
  std::vector<UserConfig> configs;
  for (int rank = 0; rank < 4; ++rank) {
    configs.push_back(cluster.Config(rank));
    configs.back().host_id = hosts[rank];
  }
  EXPECT_EQ(JoinAndSum(configs), (std::vector<Local>{{0, 3}, {0, 1}, {1, 3}, {2, 3}}));
}

TEST(LocalRankOfTwoHostsTest, OneThatIsGivenIsBelieved) {
  ClusterConfig config;
  const Cluster cluster(config);
  std::vector<UserConfig> configs;
  for (int rank = 0; rank < 2; ++rank) {
    configs.push_back(cluster.Config(rank));
    configs.back().local_rank = 1 - rank;
    configs.back().local_size = 2;
  }
  EXPECT_EQ(JoinAndSum(configs), (std::vector<Local>{{1, 2}, {0, 2}}));
}

}  // namespace
}  // namespace annulus
