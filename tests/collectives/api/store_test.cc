// Ranks that meet through a store of the program's: annulus_config_t's `store`.
//
// Threads: one per rank; the store is shared by all.

#include <annulus.h>
#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string>

#include "collectives/membership/meeting_point.h"
#include "tests/collectives/api/store_fixture.h"
#include "transport/reserved_port.h"

namespace annulus {
namespace {

std::string Encoded(const MeetingPoint& point) {
  const MeetingPointBytes bytes(point);
  return {reinterpret_cast<const char*>(bytes.used().data()), bytes.used().size()};
}

// Where nobody listens any more.
MeetingPoint DesertedAddress() {
  ReservedPort port;
  EXPECT_TRUE(port.Reserve("127.0.0.1").ok());
  MeetingPoint point;
  point.address = "127.0.0.1:" + std::to_string(port.port());
  point.key_source = KeySource::kDrawn;
  EXPECT_TRUE(DrawKey(&point.key).ok());
  return point;
}

class StoreTest : public ::testing::Test {
 protected:
  MemoryStore memory_;
  const annulus_store_t store_ = memory_.Callbacks();
};

TEST_F(StoreTest, RanksMeetWithoutAddressAndKey) {
  for (const int size : {1, 2, 5}) {
    ForEachRank(size, [&](int rank) { JoinAndSum(Config(rank, size, &store_)); });
  }
}

TEST_F(StoreTest, ThisHostsOwnAddressIsTheDefault) {
  ForEachRank(2, [&](int rank) {
    UserConfig config = Config(rank, 2, &store_);
    config.Set("interface_name", "");
    JoinAndSum(config);
  });
}

TEST_F(StoreTest, AnInterfaceThatDoesNotExistIsRefused) {
  UserConfig config = Config(0, 2, &store_);
  config.Set("interface_name", "no-such0");
  const ErrorCopy error = Refusal(config);
  EXPECT_EQ(error.status, ANNULUS_INVALID_ARGUMENT);
  EXPECT_TRUE(Contains(error.message, "no-such0")) << error.message;
}

TEST_F(StoreTest, EveryJobHasAKeyOfItsOwn) {
  std::array<MeetingPoint, 2> points;
  for (MeetingPoint& point : points) {
    ForEachRank(2, [&](int rank) { JoinAndSum(Config(rank, 2, &store_)); });
    const std::string value = memory_.Value(kRun);
    ASSERT_TRUE(Decode(std::as_bytes(std::span(value)), &point).ok());
    EXPECT_EQ(point.key_source, KeySource::kDrawn);
  }
  EXPECT_NE(points[0].key, points[1].key);
}

TEST_F(StoreTest, AKeyThatAllWereGivenStaysOutOfTheStore) {
  ForEachRank(2, [&](int rank) {
    UserConfig config = Config(rank, 2, &store_);
    config.job_key = "a key of enough characters";
    JoinAndSum(config);
  });
  EXPECT_FALSE(memory_.Value(kRun).empty());
  EXPECT_FALSE(Contains(memory_.Value(kRun), "enough"));
}

TEST_F(StoreTest, InsecureRanksNeedNoKey) {
  ForEachRank(2, [&](int rank) {
    UserConfig config = Config(rank, 2, &store_);
    config.insecure = 1;
    JoinAndSum(config);
  });
}

TEST_F(StoreTest, RanksThatDisagreeOnTheKeysSourceAreRefused) {
  MeetingPoint point = DesertedAddress();
  UserConfig config = Config(1, 2, &store_);
  const auto expect = [&](const char* part) {
    memory_.Set(kRun, Encoded(point));
    const ErrorCopy error = Refusal(config);
    EXPECT_EQ(error.status, ANNULUS_AUTH_FAILED);
    EXPECT_TRUE(Contains(error.message, part)) << error.message;
  };
  config.job_key = "a key of enough characters";
  expect("this rank was given a job key");
  point.key.clear();
  point.key_source = KeySource::kNone;
  expect("rank 0 runs without a job key");
  config.job_key = nullptr;
  expect("rank 0 runs without a job key");
  point.key_source = KeySource::kGiven;
  expect("rank 0 was given a job key");
}

TEST_F(StoreTest, RankZeroMayComeLast) {
  ForEachRank(3, [&](int rank) {
    if (rank == 0) memory_.AwaitWaiter();
    JoinAndSum(Config(rank, 3, &store_));
  });
}

TEST_F(StoreTest, ARankZeroThatNeverComesIsNamedWithTheKey) {
  UserConfig config = Config(2, 3, &store_);
  config.connect_timeout_ms = 200;
  const ErrorCopy error = Refusal(config);
  EXPECT_EQ(error.status, ANNULUS_TIMEOUT);
  EXPECT_EQ(error.rank, 0);
  EXPECT_TRUE(Contains(error.message, "rank 2 waited for key \"" + std::string(kRun) + "\"")) << error.message;
}

TEST_F(StoreTest, ARankThatNeverComesIsNamed) {
  UserConfig config = Config(0, 2, &store_);
  config.connect_timeout_ms = 200;
  const ErrorCopy error = Refusal(config);
  EXPECT_EQ(error.status, ANNULUS_TIMEOUT);
  EXPECT_EQ(error.rank, 1);
}

TEST_F(StoreTest, AStoreThatFailsIsNamedWithItsNumber) {
  memory_.FailWith(42);
  const ErrorCopy set = Refusal(Config(0, 2, &store_));
  EXPECT_EQ(set.status, ANNULUS_SYSTEM_ERROR);
  EXPECT_TRUE(Contains(set.message, "set returned 42 for key \"" + std::string(kRun))) << set.message;
  const ErrorCopy get = Refusal(Config(1, 2, &store_));
  EXPECT_EQ(get.status, ANNULUS_SYSTEM_ERROR);
  EXPECT_EQ(get.rank, 1);
  EXPECT_TRUE(Contains(get.message, "get returned 42")) << get.message;
}

TEST_F(StoreTest, SomethingElseUnderTheKeyIsRefused) {
  for (const std::string& value : {std::string("10.0.0.1:80"), std::string(), std::string(100'000, 'x')}) {
    memory_.Set(kRun, value);
    const ErrorCopy error = Refusal(Config(1, 2, &store_));
    EXPECT_EQ(error.status, ANNULUS_PROTOCOL_ERROR);
    EXPECT_TRUE(Contains(error.message, kRun)) << error.message;
  }
}

TEST_F(StoreTest, AStoreWithoutFunctionsIsRefused) {
  annulus_store_t store = store_;
  store.get = nullptr;
  EXPECT_EQ(Refusal(Config(1, 2, &store)).message, "store of annulus_config_t has no function get");
  store.struct_bytes = 8;
  EXPECT_EQ(Refusal(Config(1, 2, &store)).status, ANNULUS_INVALID_ARGUMENT);
}

TEST_F(StoreTest, OneCommunicatorAfterAnotherMeetsThroughTheSameStore) {
  ForEachRank(3, [&](int rank) {
    for (int round = 0; round < 4; ++round) JoinAndSum(Config(rank, 3, &store_), round);
  });
}

TEST_F(StoreTest, WhatAnEarlierStartLeftDoesNotMatter) {
  memory_.Set(kRun, Encoded(DesertedAddress()));
  Tally asked;
  memory_.FalsifyOnce([&](const std::string& value) {
    asked.Add();
    return value;
  });
  ForEachRank(2, [&](int rank) {
    if (rank == 0) {
      ASSERT_TRUE(asked.WaitFor(1));
    }
    JoinAndSum(Config(rank, 2, &store_));
  });
}

TEST_F(StoreTest, AnOldKeyForTheCurrentPortIsReplaced) {
  memory_.FalsifyOnce([&](const std::string& value) {
    MeetingPoint point;
    EXPECT_TRUE(Decode(std::as_bytes(std::span(value)), &point).ok());
    EXPECT_TRUE(DrawKey(&point.key).ok());
    return Encoded(point);
  });
  ForEachRank(2, [&](int rank) { JoinAndSum(Config(rank, 2, &store_)); });
}

TEST_F(StoreTest, RunsDoNotMeet) {
  ForEachRank(4, [&](int rank) {
    UserConfig config = Config(rank % 2, 2, &store_);
    config.Set("run_id", rank < 2 ? "run 7" : "run 8");
    JoinAndSum(config);
  });
  EXPECT_NE(memory_.Value(kRun), memory_.Value("annulus/rendezvous/run 8/0"));
}

}  // namespace
}  // namespace annulus
