// Groups of small allreduces by the short cut: which ones take it, and that they end as others do.

#include <annulus.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "collectives/comm/communicator.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr size_t kTensors = 50;

// Sums of tensors with 1 to 7 numbers, out of place.
class SumsGroup {
 public:
  SumsGroup(int rank, int round) : round_(round), options_(kTensors) {
    for (size_t i = 0; i < kTensors; ++i) {
      in_.push_back(Contribution(rank, CountOf(i), Seed(i)));
      out_.emplace_back(CountOf(i));
    }
    for (size_t i = 0; i < kTensors; ++i) {
      CallArguments call;
      call.kind = CollectiveKind::kAllreduce;
      call.sendbuf = in_[i].data();
      call.recvbuf = out_[i].data();
      call.count = CountOf(i);
      call.type = DataType::kInt64;
      call.options = &options_[i];
      calls_.push_back(call);
    }
  }

  std::vector<CallArguments>& calls() { return calls_; }
  std::vector<CallOptions>& options() { return options_; }

  // Whether it was submitted by the short cut.
  bool TakesIt(annulus_comm_t* comm, annulus_request_t** request) {
    return reinterpret_cast<Communicator*>(comm)->SubmitAgain(calls_, request);
  }
  void ExpectSums(int nranks) {
    for (size_t i = 0; i < kTensors; ++i) EXPECT_EQ(out_[i], SumOfAll(nranks, CountOf(i), Seed(i))) << "tensor " << i;
  }

 private:
  static size_t CountOf(size_t i) { return 1 + i % 7; }
  int Seed(size_t i) const { return round_ * 100 + static_cast<int>(i); }

  const int round_;
  std::vector<Numbers> in_;
  std::vector<Numbers> out_;
  std::vector<CallOptions> options_;
  std::vector<CallArguments> calls_;
};

struct Variant {
  const char* transport;
  int nranks;
};

class GroupShortCutTest : public testing::TestWithParam<Variant> {
 protected:
  ClusterConfig config() const {
    ClusterConfig config;
    config.transport = GetParam().transport;
    config.nranks = GetParam().nranks;
    config.timeout_ms = kFarTimeoutMs;
    return config;
  }
  int nranks() const { return GetParam().nranks; }

  // Starts the progress thread.
  static void Warm(annulus_comm_t* comm) {
    const Numbers in(1);
    Numbers out(1);
    annulus_request_t* request = nullptr;
    ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
    ASSERT_EQ(annulus_request_free(request), ANNULUS_OK);
  }
};

annulus_status_t Finish(annulus_request_t* request) {
  const annulus_status_t status = annulus_request_wait(request, -1);
  EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
  return status;
}

TEST_P(GroupShortCutTest, ManySmallSumsTakeItAndAreCounted) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Warm(comm);
    annulus_counters_t before{};
    before.struct_bytes = sizeof before;
    ASSERT_EQ(annulus_comm_counters(comm, &before), ANNULUS_OK);
    for (int round = 0; round < 20; ++round) {
      SumsGroup group(rank, round);
      annulus_request_t* request = nullptr;
      ASSERT_TRUE(group.TakesIt(comm, &request));
      ASSERT_EQ(Finish(request), ANNULUS_OK) << LastMessage();
      group.ExpectSums(nranks());
    }
    annulus_counters_t after{};
    after.struct_bytes = sizeof after;
    ASSERT_EQ(annulus_comm_counters(comm, &after), ANNULUS_OK);
    EXPECT_EQ(after.collectives - before.collectives, 20 * kTensors);
  });
}

// Some ranks make requests of all calls, as a communicator with a memory limit does. The others need not know.
TEST_P(GroupShortCutTest, ItMeetsTheLongWayOfOtherRanks) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Warm(comm);
    for (int round = 0; round < 20; ++round) {
      SumsGroup group(rank, round);
      annulus_request_t* request = nullptr;
      if ((round + rank) % 2 == 0) {
        ASSERT_TRUE(group.TakesIt(comm, &request));
      } else {
        size_t refused = 0;
        const auto give = [&request](RequestHandle handle) { request = reinterpret_cast<annulus_request_t*>(handle); };
        ASSERT_TRUE(reinterpret_cast<Communicator*>(comm)->Submit(group.calls(), give, &refused).ok());
      }
      ASSERT_EQ(Finish(request), ANNULUS_OK) << LastMessage();
      group.ExpectSums(nranks());
    }
  });
}

TEST_P(GroupShortCutTest, WhatIsNotPlainDoesNot) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Warm(comm);
    const std::vector<std::function<void(SumsGroup*)>> changes = {
        [](SumsGroup* g) { g->options()[3].done = [](void*, annulus_status_t) {}; },
        [](SumsGroup* g) { g->options()[3].agree_first = true; },
        [](SumsGroup* g) { g->options()[3].label = "one of them"; },
        [](SumsGroup* g) { g->calls()[3].op = ReduceOp::kMax; },
        [](SumsGroup* g) { g->calls()[3].kind = CollectiveKind::kAllgather; },
        [](SumsGroup* g) { g->calls()[3].recvbuf = g->calls()[2].recvbuf; },
        [](SumsGroup* g) { g->calls()[3].sendbuf = nullptr; },
        [](SumsGroup* g) { g->calls()[3].recvbuf = static_cast<char*>(g->calls()[3].recvbuf) + 1; },
        [](SumsGroup* g) { g->calls()[3].count = SIZE_MAX / 16; },
        [](SumsGroup* g) { g->calls()[0].type = static_cast<DataType>(99); },
    };
    for (size_t i = 0; i < changes.size(); ++i) {
      SumsGroup group(rank, 0);
      changes[i](&group);
      annulus_request_t* request = nullptr;
      EXPECT_FALSE(group.TakesIt(comm, &request)) << "change " << i;
    }
  });
}

TEST_P(GroupShortCutTest, CommonDeadlinesAndLabelsAreKept) {
  Tally ended;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Warm(comm);
    if (rank == 0) {
      SumsGroup group(rank, 0);
      for (CallOptions& options : group.options()) {
        options.label = "gradients";
        options.timeout = 300 * kMillisecond;
      }
      annulus_request_t* request = nullptr;
      ASSERT_TRUE(group.TakesIt(comm, &request));
      EXPECT_EQ(Finish(request), ANNULUS_TIMEOUT);
      annulus_error_t error{};
      error.struct_bytes = sizeof error;
      ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
      EXPECT_STREQ(error.label, "gradients");
      ended.Add();
    }
    ASSERT_TRUE(ended.WaitFor(1));
  });
}

TEST_P(GroupShortCutTest, WithoutARequestItIsDoneAllTheSame) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Warm(comm);
    SumsGroup group(rank, 5);
    ASSERT_TRUE(group.TakesIt(comm, nullptr));
    Numbers last(1);
    ASSERT_EQ(Sum(comm, Numbers(1, rank), &last), ANNULUS_OK);
    group.ExpectSums(nranks());
  });
}

INSTANTIATE_TEST_SUITE_P(Links, GroupShortCutTest,
                         testing::Values(Variant{"shm", 2}, Variant{"shm", 3}, Variant{"tcp", 2}),
                         [](const auto& info) {
                           return std::string(info.param.transport) + "_" + std::to_string(info.param.nranks);
                         });

}  // namespace
}  // namespace annulus
