// Small collectives that come again and again, which take a short cut: the same results, refusals and endings as ever.

#include <annulus.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr size_t kCount = 5;
constexpr int kRepeats = 50;

struct Variant {
  const char* transport;
  int nranks;
  int64_t spin_us;  // 0: as where ranks outnumber cores.
  bool checksum;
};

class ShortHopTest : public testing::TestWithParam<Variant> {
 protected:
  ClusterConfig config(int64_t timeout_ms = kFarTimeoutMs) const {
    ClusterConfig config;
    config.transport = GetParam().transport;
    config.nranks = GetParam().nranks;
    config.spin_us = GetParam().spin_us;
    config.checksum = GetParam().checksum;
    config.tcp_sockets = 1;
    config.timeout_ms = timeout_ms;
    return config;
  }
  int nranks() const { return GetParam().nranks; }

  void Repeat(annulus_comm_t* comm, int rank, int times) const {
    for (int i = 0; i < times; ++i) {
      Numbers out(kCount);
      ASSERT_EQ(Sum(comm, Contribution(rank, kCount, i), &out), ANNULUS_OK) << LastMessage();
      ASSERT_EQ(out, SumOfAll(nranks(), kCount, i)) << i;
    }
  }
};

TEST_P(ShortHopTest, ResultsAreRightInAnyFormAndBesideOtherCalls) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    for (int i = 0; i < 300; ++i) {
      const size_t count = i % 50 < 40 ? kCount : 1 + 37 * static_cast<size_t>(i % 50);
      Numbers numbers = Contribution(rank, count, i);
      if (i % 3 == 0) {
        Numbers out(count);
        ASSERT_EQ(Sum(comm, numbers, &out), ANNULUS_OK);
        numbers = out;
      } else {
        ASSERT_EQ(annulus_allreduce(comm, numbers.data(), numbers.data(), count, ANNULUS_INT64, ANNULUS_SUM),
                  ANNULUS_OK);
      }
      ASSERT_EQ(numbers, SumOfAll(nranks(), count, i)) << i;
      for (int k = 0; k < i % 7 - 3; ++k) ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
    }
  });
}

TEST_P(ShortHopTest, EveryRepeatIsCounted) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Repeat(comm, rank, kRepeats);
    annulus_counters_t counters{};
    counters.struct_bytes = sizeof counters;
    ASSERT_EQ(annulus_comm_counters(comm, &counters), ANNULUS_OK);
    EXPECT_EQ(counters.collectives, static_cast<uint64_t>(kRepeats));
    EXPECT_EQ(counters.data_bytes, kRepeats * kCount * sizeof(int64_t));
    EXPECT_GT(counters.driven_ns, 0u);
    EXPECT_LE(counters.waited_ns, counters.driven_ns);
  });
}

TEST_P(ShortHopTest, ABadBufferIsRefusedAndTheCommunicatorStaysUsable) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Repeat(comm, rank, kRepeats);
    Numbers out(2 * kCount);
    const auto call = [&](const void* in, void* to) {
      return annulus_allreduce(comm, in, to, kCount, ANNULUS_INT64, ANNULUS_SUM);
    };
    EXPECT_EQ(call(nullptr, out.data()), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(call(out.data(), nullptr), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(call(reinterpret_cast<char*>(out.data()) + 4, out.data() + kCount), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(call(out.data(), out.data() + kCount - 1), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(call(out.data() + 1, out.data()), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_allreduce(comm, out.data(), out.data(), kCount, static_cast<annulus_type_t>(99), ANNULUS_SUM),
              ANNULUS_INVALID_ARGUMENT);
    Repeat(comm, rank, kRepeats);
  });
}

TEST_P(ShortHopTest, ACallThatDiffersOnOneRankIsFoundOut) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Repeat(comm, rank, kRepeats);
    const Numbers in = Contribution(rank, kCount, 0);
    Numbers out(kCount);
    const annulus_op_t op = rank == 1 ? ANNULUS_MAX : ANNULUS_SUM;
    EXPECT_EQ(annulus_allreduce(comm, in.data(), out.data(), kCount, ANNULUS_INT64, op), ANNULUS_MISMATCH);
    EXPECT_EQ(LastError(comm).sequence, static_cast<uint64_t>(kRepeats + 1));
    EXPECT_EQ(Sum(comm, in, &out), ANNULUS_MISMATCH) << "refused from now on";
  });
}

TEST_P(ShortHopTest, ADeadlineEndsARepeat) {
  Tally ended;
  Cluster(config(1000)).Run([&](annulus_comm_t* comm, int rank) {
    Repeat(comm, rank, kRepeats);
    if (rank != 0) {
      const Numbers in = Contribution(rank, kCount, 0);
      Numbers out(kCount);
      EXPECT_EQ(Sum(comm, in, &out), ANNULUS_TIMEOUT);
      EXPECT_EQ(LastError(comm).sequence, static_cast<uint64_t>(kRepeats + 1));
      ended.Add();
    }
    ASSERT_TRUE(ended.WaitFor(nranks() - 1));
  });
}

TEST_P(ShortHopTest, APeerThatLeavesEndsARepeat) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Repeat(comm, rank, kRepeats);
    if (rank == nranks() - 1) return;  // Its communicator is destroyed.
    const Nanoseconds begin = Now();
    const Numbers in = Contribution(rank, kCount, 0);
    Numbers out(kCount);
    EXPECT_NE(Sum(comm, in, &out), ANNULUS_OK);
    EXPECT_LT(Now() - begin, kSoon);
  });
}

TEST_P(ShortHopTest, AnAbortOfAnotherThreadEndsRepeats) {
  Tally repeated;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    std::jthread aborter([&] {
      if (rank != 0) return;
      ASSERT_TRUE(repeated.WaitFor(3 * kRepeats));
      EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK);
    });
    const Numbers in = Contribution(rank, kCount, 0);
    annulus_status_t status = ANNULUS_OK;
    const Deadline deadline = DeadlineAfter(kPatience);
    while (status == ANNULUS_OK && Now() < deadline) {
      Numbers out(kCount);
      status = Sum(comm, in, &out);
      repeated.Add();
    }
    EXPECT_EQ(status, ANNULUS_ABORTED);
  });
}

TEST_P(ShortHopTest, RanksNeedNotTakeTheShortCutAlike) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    for (int i = 0; i < kRepeats; ++i) {
      const Numbers in = Contribution(rank, kCount, i);
      Numbers out(kCount);
      if (i % nranks() == rank) {
        annulus_request_t* request = nullptr;
        ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
        ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
        ASSERT_EQ(annulus_request_free(request), ANNULUS_OK);
      } else {
        ASSERT_EQ(Sum(comm, in, &out), ANNULUS_OK);
      }
      ASSERT_EQ(out, SumOfAll(nranks(), kCount, i)) << i;
    }
  });
}

TEST_P(ShortHopTest, AMessageMovesBesideRepeats) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Repeat(comm, rank, 2);
    const int next = (rank + 1) % nranks();
    const int prev = (rank + nranks() - 1) % nranks();
    const Numbers sent(30'000, rank);
    Numbers received(sent.size());
    annulus_request_t* requests[2] = {};
    ASSERT_EQ(annulus_recv_async(comm, received.data(), received.size(), ANNULUS_INT64, prev, &requests[0]),
              ANNULUS_OK);
    Repeat(comm, rank, kRepeats);
    ASSERT_EQ(annulus_send_async(comm, sent.data(), sent.size(), ANNULUS_INT64, next, &requests[1]), ANNULUS_OK);
    Repeat(comm, rank, kRepeats);
    for (annulus_request_t* request : requests) {
      ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
      ASSERT_EQ(annulus_request_free(request), ANNULUS_OK);
    }
    EXPECT_EQ(received, Numbers(sent.size(), prev));
    Repeat(comm, rank, kRepeats);
  });
}

TEST_P(ShortHopTest, ThreadsTakeTurns) {
  constexpr int kThreads = 4;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    const Numbers in = Contribution(rank, kCount, 0);  // The same for all threads, so their order does not matter.
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&] {
        for (int i = 0; i < kRepeats; ++i) {
          Numbers out(kCount);
          ASSERT_EQ(Sum(comm, in, &out), ANNULUS_OK);
          ASSERT_EQ(out, SumOfAll(nranks(), kCount, 0));
        }
      });
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Variants, ShortHopTest,
                         testing::Values(Variant{"shm", 2, -1, false}, Variant{"shm", 3, 0, false},
                                         Variant{"tcp", 2, -1, false}, Variant{"tcp", 3, 0, true}),
                         [](const auto& info) {
                           return std::string(info.param.transport) + std::to_string(info.param.nranks);
                         });

}  // namespace
}  // namespace annulus
