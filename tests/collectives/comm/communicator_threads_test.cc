// Several threads on one communicator, and several communicators in one rank.

#include <annulus.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <tuple>

#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/links_fixture.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr size_t kSmallCount = 100;     // One hop.
constexpr size_t kLargeCount = 20'000;  // Around the ring, in several slices.

class CommunicatorThreadsTest : public LinksTest {
 protected:
  ClusterConfig config() const {
    ClusterConfig config = LinksTest::config();
    config.timeout_ms = kFarTimeoutMs;
    return config;
  }
};

// One allreduce that is under way.
struct Pending {
  Numbers in;
  Numbers out;
  annulus_request_t* request = nullptr;
};

void Finish(Pending* pending, const Numbers& expected) {
  EXPECT_EQ(annulus_request_wait(pending->request, -1), ANNULUS_OK);
  EXPECT_EQ(pending->out, expected);
  EXPECT_EQ(annulus_request_free(pending->request), ANNULUS_OK);
}

// Blocking calls and batches of asynchronous ones; every call is the same, so the threads need no order.
void RepeatOneCall(annulus_comm_t* comm, int rank, int nranks, size_t count, int thread) {
  constexpr int kRounds = 12;
  constexpr int kBatch = 3;
  const Numbers in = Contribution(rank, count, 0);
  const Numbers expected = SumOfAll(nranks, count, 0);
  for (int round = 0; round < kRounds; ++round) {
    if ((thread + round) % 2 == 0) {
      for (int i = 0; i < kBatch; ++i) {
        Numbers out(count);
        ASSERT_EQ(Sum(comm, in, &out), ANNULUS_OK) << LastError(comm).message;
        ASSERT_EQ(out, expected);
      }
      continue;
    }
    Pending batch[kBatch];
    for (Pending& pending : batch) {
      pending = {in, Numbers(count), nullptr};
      ASSERT_EQ(SumAsync(comm, pending.in, &pending.out, &pending.request), ANNULUS_OK);
    }
    for (Pending& pending : batch) Finish(&pending, expected);
  }
}

TEST_P(CommunicatorThreadsTest, ThreadsThatMakeTheSameCallNeedNoOrder) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    for (size_t count : {kSmallCount, kLargeCount}) {
      std::vector<std::jthread> threads;
      for (int t = 0; t < 3; ++t) threads.emplace_back([=, this] { RepeatOneCall(comm, rank, n(), count, t); });
    }
    EXPECT_EQ(LastError(comm).status, ANNULUS_OK);
  });
}

// The call with this number, made by the thread whose turn it is: allreduces and broadcasts of various sizes, some
// blocking, some asynchronous; these are finished after the turn has gone on.
void MakeCall(annulus_comm_t* comm, int rank, int nranks, int number, std::optional<Pending>* pending) {
  const size_t count = number % 5 == 0 ? kLargeCount : kSmallCount + number;
  pending->emplace();
  Pending& own = **pending;
  own = {Contribution(rank, count, number), Numbers(count), nullptr};
  const bool broadcast = number % 3 == 1;
  const bool blocking = number % 4 == 0;
  const int root = number % nranks;
  annulus_status_t status;
  if (broadcast && blocking) {
    status = annulus_broadcast(comm, own.in.data(), own.out.data(), count, ANNULUS_INT64, root);
  } else if (broadcast) {
    status = annulus_broadcast_async(comm, own.in.data(), own.out.data(), count, ANNULUS_INT64, root, &own.request);
  } else if (blocking) {
    status = Sum(comm, own.in, &own.out);
  } else {
    status = SumAsync(comm, own.in, &own.out, &own.request);
  }
  EXPECT_EQ(status, ANNULUS_OK) << LastError(comm).message;
  if (!blocking) return;
  EXPECT_EQ(own.out, broadcast ? Contribution(root, count, number) : SumOfAll(nranks, count, number));
  pending->reset();
}

TEST_P(CommunicatorThreadsTest, ThreadsThatTakeTurnsMayMakeDifferentCalls) {
  constexpr int kThreads = 3;
  constexpr int kCalls = 60;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Tally turn;
    const auto body = [&](int thread) {
      for (int number = thread; number < kCalls; number += kThreads) {
        std::optional<Pending> pending;
        ASSERT_TRUE(turn.WaitFor(number));
        MakeCall(comm, rank, n(), number, &pending);
        turn.Add();
        if (!pending) continue;
        const size_t count = pending->in.size();
        const bool broadcast = number % 3 == 1;
        Finish(&*pending, broadcast ? Contribution(number % n(), count, number) : SumOfAll(n(), count, number));
      }
    };
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) threads.emplace_back(body, t);
  });
}

// A second communicator of the same rank.
class Second {
 public:
  Second(const Cluster& cluster, int rank) {
    const UserConfig config = cluster.Config(rank);
    EXPECT_EQ(annulus_comm_create(&config, &comm_), ANNULUS_OK) << LastMessage();
  }
  ~Second() { EXPECT_EQ(annulus_comm_destroy(comm_), ANNULUS_OK); }
  Second(const Second&) = delete;
  Second& operator=(const Second&) = delete;
  annulus_comm_t* comm() const { return comm_; }

 private:
  annulus_comm_t* comm_ = nullptr;
};

void CheckSum(annulus_comm_t* comm, int rank, int nranks, size_t count, int salt) {
  Numbers out(count);
  ASSERT_EQ(Sum(comm, Contribution(rank, count, salt), &out), ANNULUS_OK) << LastError(comm).message;
  ASSERT_EQ(out, SumOfAll(nranks, count, salt));
}

TEST_P(CommunicatorThreadsTest, TwoCommunicatorsOfARankServeTwoThreads) {
  const Cluster other(config());
  Cluster(config()).Run([&](annulus_comm_t* first, int rank) {
    const Second second(other, rank);
    ASSERT_NE(second.comm(), nullptr);
    const auto work = [&](annulus_comm_t* comm, int salt) {
      for (int round = 0; round < 20; ++round) {
        CheckSum(comm, rank, n(), round % 4 == 0 ? kLargeCount : kSmallCount, salt + round);
        if (HasFatalFailure()) return;
      }
    };
    const std::jthread thread(work, second.comm(), 500);
    work(first, 0);
  });
}

TEST_P(CommunicatorThreadsTest, TwoCommunicatorsServeOneThreadInTurn) {
  const Cluster other(config());
  Cluster(config()).Run([&](annulus_comm_t* first, int rank) {
    const Second second(other, rank);
    ASSERT_NE(second.comm(), nullptr);
    for (int round = 0; round < 20; ++round) {
      CheckSum(first, rank, n(), round % 4 == 0 ? kLargeCount : kSmallCount, round);
      CheckSum(second.comm(), rank, n(), kSmallCount + round, 500 + round);
      if (HasFatalFailure()) return;
    }
  });
}

TEST_P(CommunicatorThreadsTest, CommunicatorsHaveNoOrderAmongThem) {
  const Cluster other(config());
  Cluster(config()).Run([&](annulus_comm_t* first, int rank) {
    const Second second(other, rank);
    ASSERT_NE(second.comm(), nullptr);
    for (int round = 0; round < 10; ++round) {
      // Every other rank blocks in the one communicator while it has work queued on the other, and the rest vice versa.
      const bool even = rank % 2 == 0;
      const size_t count = round % 2 == 0 ? kSmallCount : kLargeCount;
      Pending pending{Contribution(rank, count, round), Numbers(count), nullptr};
      ASSERT_EQ(SumAsync(even ? first : second.comm(), pending.in, &pending.out, &pending.request), ANNULUS_OK);
      CheckSum(even ? second.comm() : first, rank, n(), count, round);
      Finish(&pending, SumOfAll(n(), count, round));
      if (HasFatalFailure()) return;
    }
  });
}

TEST_P(CommunicatorThreadsTest, AbortOfOneCommunicatorLeavesTheOtherAlone) {
  const Cluster other(config());
  Tally called;
  Tally aborted;
  Cluster(config()).Run([&](annulus_comm_t* first, int rank) {
    const Second second(other, rank);
    ASSERT_NE(second.comm(), nullptr);
    CheckSum(first, rank, n(), kSmallCount, 1);
    called.Add();
    ASSERT_TRUE(called.WaitFor(n()));  // The abort must not overtake that call on another rank.
    if (rank == 0) {
      EXPECT_EQ(annulus_comm_abort(first, nullptr), ANNULUS_OK);
    }
    EXPECT_EQ(annulus_barrier(first), ANNULUS_ABORTED);
    aborted.Add();
    CheckSum(second.comm(), rank, n(), kSmallCount, 2);
    annulus_error_t verdict{};
    verdict.struct_bytes = sizeof verdict;
    EXPECT_EQ(annulus_comm_verdict(second.comm(), &verdict), ANNULUS_OK);
    EXPECT_EQ(verdict.status, ANNULUS_OK);
    EXPECT_TRUE(aborted.WaitFor(n())) << "all stay until everyone has heard of it";
  });
}

INSTANTIATE_TEST_SUITE_P(Links, CommunicatorThreadsTest, OverLinks(2, 4), LinksName);

}  // namespace
}  // namespace annulus
