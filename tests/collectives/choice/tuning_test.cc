// Measured choice: the file of what was measured, and communicators that measure.
#include <annulus.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"
#include "collectives/api/config.h"
#include "collectives/calls/request_table.h"
#include "collectives/choice/tuning_file.h"
#include "collectives/comm/communicator.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

// A folder of this process's own, gone at its end: copies of this test may run side by side.
class OwnFolder {
 public:
  OwnFolder() : path_(testing::TempDir() + "/tuning_test.XXXXXX") { ANNULUS_CHECK(mkdtemp(path_.data()) != nullptr); }
  ~OwnFolder() { std::filesystem::remove_all(path_); }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

const std::string& Folder() {
  static const OwnFolder folder;
  return folder.path();
}

std::string FreshPath(const std::string& name) {
  const std::string path = Folder() + "/" + name;
  std::filesystem::remove(path);
  return path;
}

void Put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::string Get(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TuningSubject Subject() {
  TuningSubject subject;
  subject.nranks = 3;
  subject.host_of = {0, 0, 1};
  subject.near = "shm";
  subject.far = "tcp";
  subject.transport_settings = {{"tcp_sockets", 0}};
  return subject;
}

MeasuredFactors RingAlone() {
  MeasuredFactors factors{};
  factors[PlaceOf(Algorithm::kRing)].is_measured = 1;
  return factors;
}

TEST(TuningFileTest, GivesBackWhatWasPut) {
  const std::string path = FreshPath("back");
  MeasuredFactors factors{};
  for (size_t place = 1; place < factors.size(); ++place)
    factors[place] = {1, 1.5 + static_cast<double>(place), 0.1, 9};
  ASSERT_TRUE(WriteTuningFile(path, Subject(), factors).ok());
  std::optional<MeasuredFactors> read;
  ASSERT_TRUE(ReadTuningFile(path, Subject(), &read).ok());
  ASSERT_TRUE(read.has_value());
  for (size_t place = 0; place < factors.size(); ++place) {
    EXPECT_EQ((*read)[place].message, factors[place].message);
    EXPECT_EQ((*read)[place].byte, factors[place].byte);
    EXPECT_EQ((*read)[place].large, factors[place].large);
    EXPECT_EQ((*read)[place].is_measured, factors[place].is_measured);
  }
}

TEST(TuningFileTest, OfAnotherJobOrVersionOrNoneIsNotUsed) {
  const std::string path = FreshPath("other");
  std::optional<MeasuredFactors> read;
  EXPECT_TRUE(ReadTuningFile(path, Subject(), &read).ok());
  EXPECT_FALSE(read.has_value());
  ASSERT_TRUE(WriteTuningFile(path, Subject(), {}).ok());
  std::vector<TuningSubject> others(9, Subject());
  others[0].nranks = 4;
  others[1].host_of = {0, 1, 1};
  others[2].near = "tcp";
  others[3].ranks_per_core = 2;
  others[4].small_bytes = 1;
  others[5].slice_bytes = 1;
  others[6].channels = 2;
  others[7].transport_settings = {{"tcp_sockets", 1}};
  others[8].far = "verbs";
  for (const TuningSubject& other : others) {
    EXPECT_TRUE(ReadTuningFile(path, other, &read).ok());
    EXPECT_FALSE(read.has_value());
  }
  std::string text = Get(path);
  text.replace(text.find("\"version\": 2"), 12, "\"version\": 9");
  Put(path, text);
  EXPECT_TRUE(ReadTuningFile(path, Subject(), &read).ok());
  EXPECT_FALSE(read.has_value());
}

TEST(TuningFileTest, ABrokenOneIsAnErrorThatNamesIt) {
  const std::string path = FreshPath("broken");
  ASSERT_TRUE(WriteTuningFile(path, Subject(), RingAlone()).ok());
  const std::string good = Get(path);
  std::string wrong = good;
  wrong.replace(wrong.find("\"byte_factor\": 1.0"), 18, "\"byte_factor\": -10");
  for (const std::string& text :
       {std::string(), std::string("no"), std::string("[1]"), std::string("{}"), std::string("{\"format\": 3}"),
        good.substr(0, good.size() / 2), wrong, std::string(1'000'000, '['), "{\"job\":" + std::string(1'000'000, '['),
        good + std::string(1 << 20, ' ')}) {
    Put(path, text);
    std::optional<MeasuredFactors> read;
    const Status status = ReadTuningFile(path, Subject(), &read);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text.substr(0, 1000);
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
    EXPECT_FALSE(read.has_value());
  }
}

TEST(TuningFileTest, APlaceThatCannotBeWrittenIsAnErrorThatNamesIt) {
  const std::string path = "/nowhere/at/all";
  const Status status = WriteTuningFile(path, Subject(), {});
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_NE(status.message().find(path), std::string::npos);
}

TEST(TuningFileTest, WhatIsNoFileIsRefusedWithoutAWait) {
  const std::string path = FreshPath("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  for (const std::string& each : {path, Folder(), std::string("/dev/zero")}) {
    std::optional<MeasuredFactors> read;
    const Status status = ReadTuningFile(each, Subject(), &read);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.ToString();
    EXPECT_NE(status.message().find("no regular file"), std::string::npos) << status.message();
  }
}

TEST(TuningFileTest, TakesALinksPlaceAndWritesNothingThroughIt) {
  const std::string victim = FreshPath("victim");
  Put(victim, "precious");
  const std::string path = FreshPath("link");
  std::filesystem::create_symlink(victim, path);
  ASSERT_TRUE(WriteTuningFile(path, Subject(), RingAlone()).ok());
  EXPECT_EQ(Get(victim), "precious");
  EXPECT_FALSE(std::filesystem::is_symlink(path));
  std::optional<MeasuredFactors> read;
  EXPECT_TRUE(ReadTuningFile(path, Subject(), &read).ok());
  EXPECT_TRUE(read.has_value());
  for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("link.")) << entry.path() << " was left behind";
  }
}

// -- Communicators ---------------------------------------------------------------------------------------------------

class MeasuredChoiceTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    config_.nranks = 3;
    config_.transport = GetParam();
  }
  ClusterConfig config_;
};

void ExpectSums(annulus_comm_t* comm, int rank, int nranks) {
  for (const size_t count : {1, 100, 2'000, 8'192, 50'000, 300'000}) {
    Numbers out(count);
    EXPECT_EQ(Sum(comm, Contribution(rank, count, 0), &out), ANNULUS_OK) << LastError(comm).message;
    EXPECT_EQ(out, SumOfAll(nranks, count, 0));
  }
}

TEST_P(MeasuredChoiceTest, AllRanksWorkTogetherAndTheNextRunFindsTheFile) {
  const Cluster cluster(config_);
  const std::string path = FreshPath("measured-" + GetParam());
  ForEachRank(3, [&](int rank) {
    UserConfig config = cluster.Config(rank);
    config.Set("tuning", "measured");
    config.Set("tuning_file", path);
    annulus_comm_t* comm = nullptr;
    ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
    ExpectSums(comm, rank, 3);
    EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
  });
  const std::string measured = Get(path);
  EXPECT_NE(measured.find("one_hop"), std::string::npos);
  EXPECT_EQ(measured.find("two_level"), std::string::npos);
  const Cluster again(config_);  // Rendezvous of its own.
  ForEachRank(3, [&](int rank) {
    UserConfig config = again.Config(rank);
    config.Set("tuning", "measured");
    config.Set("tuning_file", path);
    annulus_comm_t* comm = nullptr;
    ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
    ExpectSums(comm, rank, 3);
    EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
  });
  EXPECT_EQ(Get(path), measured);
}

TEST_P(MeasuredChoiceTest, ABrokenFileFailsAllRanksAlike) {
  const Cluster cluster(config_);
  const std::string path = FreshPath("broken-" + GetParam());
  Put(path, "{");
  ForEachRank(3, [&](int rank) {
    UserConfig config = cluster.Config(rank);
    config.Set("tuning", "measured");
    config.Set("tuning_file", path);
    annulus_comm_t* comm = nullptr;
    EXPECT_EQ(annulus_comm_create(&config, &comm), ANNULUS_INVALID_ARGUMENT);
    EXPECT_NE(LastMessage().find(path), std::string::npos) << LastMessage();
  });
}

TEST_P(MeasuredChoiceTest, AFileThatCannotBeWrittenFailsNobody) {
  const Cluster cluster(config_);
  ForEachRank(3, [&](int rank) {
    UserConfig config = cluster.Config(rank);
    config.Set("tuning", "measured");
    config.Set("tuning_file", "/nowhere/at/all");
    annulus_comm_t* comm = nullptr;
    ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
    ExpectSums(comm, rank, 3);
    EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
  });
}

INSTANTIATE_TEST_SUITE_P(Links, MeasuredChoiceTest, testing::Values("shm", "tcp"),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

TEST(MeasuredHostsTest, TwoLevelsAreMeasuredAndSplitsLeaveTheFileAlone) {
  ClusterConfig two_hosts;
  two_hosts.nranks = 4;
  two_hosts.hosts = 2;
  const Cluster cluster(two_hosts);
  const std::string path = FreshPath("hosts");
  std::string measured;
  ForEachRank(4, [&](int rank) {
    UserConfig config = cluster.Config(rank);
    config.Set("tuning", "measured");
    config.Set("tuning_file", path);
    annulus_comm_t* comm = nullptr;
    ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
    ExpectSums(comm, rank, 4);
    if (rank == 0) measured = Get(path);
    annulus_comm_t* half = nullptr;
    ASSERT_EQ(annulus_comm_split(comm, rank % 2, 0, &half), ANNULUS_OK) << LastMessage();
    ExpectSums(half, rank / 2, 2);
    EXPECT_EQ(annulus_comm_destroy(half), ANNULUS_OK);
    EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
  });
  EXPECT_EQ(Get(path), measured);
  const auto algorithms = nlohmann::json::parse(measured)["algorithms"];
  for (const char* name : {"two_level", "ring"}) {
    ASSERT_TRUE(algorithms.contains(name)) << measured;
    EXPECT_NE(algorithms[name]["large_factor"], 1) << measured;
  }
}

TEST(MeasuredHostsTest, ItIsAskedBetweenCallsWhetherToGiveUp) {
  const Cluster cluster(ClusterConfig{});
  RequestTable requests;
  ForEachRank(2, [&](int rank) {
    Options options;
    const UserConfig config = cluster.Config(rank);
    ASSERT_TRUE(ToOptions(&config, ProcessVariable, &options).ok());
    std::unique_ptr<Communicator> comm;
    ASSERT_TRUE(Communicator::Create(options, {.requests = &requests}, &comm).ok());
    int questions = 0;
    const auto give_up = [&] { return ++questions < 20 || rank == 0 ? Status() : Status(Code::kAborted, "no more"); };
    const Status status = comm->Tune("", give_up);
    EXPECT_EQ(status.code(), rank == 0 ? Code::kPeerLost : Code::kAborted) << status.ToString();
  });
}

TEST(AlgorithmSettingTest, MustBeTheSameOnAllRanks) {
  const Cluster cluster(ClusterConfig{});
  ForEachRank(2, [&](int rank) {
    UserConfig config = cluster.Config(rank);
    config.Set("algorithm", rank == 0 ? "ring" : "one_hop");
    annulus_comm_t* comm = nullptr;
    EXPECT_EQ(annulus_comm_create(&config, &comm), ANNULUS_MISMATCH);
    const std::string message = LastMessage();
    EXPECT_NE(message.find("ANNULUS_ALGORITHM must be the same on all ranks"), std::string::npos) << message;
  });
}

TEST(AlgorithmSettingTest, AnUnknownOneIsRefusedWithThoseThatExist) {
  const Cluster cluster(ClusterConfig{});
  UserConfig config = cluster.Config(0);
  config.Set("algorithm", "star");
  annulus_comm_t* comm = nullptr;
  EXPECT_EQ(annulus_comm_create(&config, &comm), ANNULUS_INVALID_ARGUMENT);
  const std::string message = LastMessage();
  EXPECT_NE(message.find("\"star\"; allowed: auto, two_level, tree"), std::string::npos) << message;
}

TEST(AlgorithmSettingTest, ATuningFileWithoutMeasuringIsRefused) {
  const Cluster cluster(ClusterConfig{});
  UserConfig config = cluster.Config(0);
  config.Set("tuning_file", "x");
  annulus_comm_t* comm = nullptr;
  EXPECT_EQ(annulus_comm_create(&config, &comm), ANNULUS_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace annulus
