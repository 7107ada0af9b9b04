// Ranks that meet through a store of the program's: annulus_config_t's `store`.
//
// Threads: one per rank; the store is shared by all, and so is what happens between a rank's links and its
// communicator.

#include <annulus.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/api/config.h"
#include "collectives/calls/request_table.h"
#include "collectives/comm/communicator.h"
#include "collectives/comm/introduction.h"
#include "collectives/core/options.h"
#include "collectives/membership/meeting_point.h"
#include "tests/collectives/api/store_fixture.h"
#include "transport/reserved_port.h"
#include "transport/tcp/tcp.h"
#include "transport/transport.h"
#include "transport/transport_info.h"

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

// TCP that makes all links of a rank, and then does what the test wants before the rank has its communicator.
class LateTransport final : public Transport {
 public:
  using Act = std::function<Status(int rank, const ConnectContext& context)>;

  static TransportInfo Info(const Act* act) {
    act_ = act;
    TransportInfo info = kTcpTransport;
    info.create = [](const TransportConfig& config) -> std::unique_ptr<Transport> {
      return std::make_unique<LateTransport>(config);
    };
    return info;
  }

  explicit LateTransport(const TransportConfig& config) : rank_(config.rank), tcp_(CreateTcpTransport(config)) {}

  const char* Name() const override { return tcp_->Name(); }
  Status Probe() const override { return tcp_->Probe(); }
  Status LocalAddress(std::string* address) override { return tcp_->LocalAddress(address); }
  Status Connect(std::span<const LinkRequest> links, const ConnectContext& context,
                 std::vector<std::unique_ptr<Endpoint>>* endpoints) override {
    ANNULUS_RETURN_IF_ERROR(tcp_->Connect(links, context, endpoints));
    Status status = (*act_)(rank_, context);
    if (!status.ok()) endpoints->clear();
    return status;
  }

 private:
  static inline const Act* act_ = nullptr;
  const int rank_;
  const std::unique_ptr<Transport> tcp_;
};

// Goes on asking whether to give up, for longer than the time between two looks into a store.
Status AskLong(const ConnectContext& context) {
  for (const Deadline until = DeadlineAfter(500 * kMillisecond); Now() < until;) {
    ANNULUS_RETURN_IF_ERROR(context.give_up());
    ::poll(nullptr, 0, 10);
  }
  return context.give_up();
}

class LateLinksTest : public StoreTest {
 protected:
  static constexpr int kRanks = 3;

  Status Create(int rank, std::unique_ptr<Communicator>* comm) {
    const UserConfig config = Config(rank, kRanks, &store_);
    Options options;
    Introduction introduction;
    ANNULUS_RETURN_IF_ERROR(ToOptions(&config, ProcessVariable, &options));
    ANNULUS_RETURN_IF_ERROR(ToIntroduction(&config, &introduction));
    return Introduce(introduction, options, {.requests = &requests_, .transports = transports_}, comm);
  }

  void ExpectSum(const std::unique_ptr<Communicator>& comm, int salt) {
    ASSERT_NE(comm, nullptr);
    auto* const handle = reinterpret_cast<annulus_comm_t*>(comm.get());
    const size_t count = 1000;
    Numbers out(count);
    EXPECT_EQ(Sum(handle, Contribution(comm->rank(), count, salt), &out), ANNULUS_OK);
    EXPECT_EQ(out, SumOfAll(kRanks, count, salt));
  }

  LateTransport::Act act_;
  const TransportInfo late_ = LateTransport::Info(&act_);
  const TransportInfo* const transports_[1] = {&late_};
  RequestTable requests_;
};

TEST_F(LateLinksTest, WhatIsInTheStoreOnceTheRanksHaveMetDoesNotMatter) {
  act_ = [&](int rank, const ConnectContext& context) {
    if (rank != 1) return Status();
    memory_.Set(kRun, Encoded(DesertedAddress()));
    return AskLong(context);
  };
  ForEachRank(kRanks, [&](int rank) {
    std::unique_ptr<Communicator> comm;
    const Status made = Create(rank, &comm);
    ASSERT_TRUE(made.ok()) << made.ToString();
    ExpectSum(comm, 0);
  });
}

// Rank 0 has its communicator and leaves its next address, while the others still make links.
TEST_F(LateLinksTest, RankZeroMayMakeTheNextOneAtOnce) {
  std::array<bool, kRanks> has_been_late{};
  act_ = [&](int rank, const ConnectContext& context) {
    if (rank == 0 || std::exchange(has_been_late[static_cast<size_t>(rank)], true)) return Status();
    EXPECT_TRUE(memory_.AwaitSets(2));
    return AskLong(context);
  };
  ForEachRank(kRanks, [&](int rank) {
    std::array<std::unique_ptr<Communicator>, 2> comms;
    for (auto& comm : comms) {
      const Status made = Create(rank, &comm);
      ASSERT_TRUE(made.ok()) << made.ToString();
    }
    ExpectSum(comms[1], 1);
    ExpectSum(comms[0], 0);
  });
}

// Else this rank would take rank 0's second try for its own first.
TEST_F(LateLinksTest, ARankThatHasMetTheOthersDoesNotTryElsewhere) {
  act_ = [&](int rank, const ConnectContext&) {
    if (rank != 1) return Status();
    memory_.Set(kRun, Encoded(DesertedAddress()));
    return Status(Code::kSystem, "its links broke", rank, 0);
  };
  Tally failed;
  ForEachRank(kRanks, [&](int rank) {
    std::unique_ptr<Communicator> comm;
    const Nanoseconds start = Now();
    const Status made = Create(rank, &comm);
    if (rank != 1) {  // It may have its communicator, and must not be the first that leaves.
      EXPECT_TRUE(failed.WaitFor(1));
      return;
    }
    failed.Add();
    EXPECT_EQ(made.code(), Code::kSystem) << made.ToString();
    EXPECT_TRUE(Contains(made.message(), "its links broke")) << made.message();
    EXPECT_LT(Now() - start, kSoon);
  });
}

}  // namespace
}  // namespace annulus
