// Functions that are called when queued calls have ended, and what they may do.
#include <annulus.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "tests/collectives/harness/calls.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

ClusterConfig Far() {
  ClusterConfig config;
  config.timeout_ms = kFarTimeoutMs;
  return config;
}

// What a callback was told.
using Told = std::promise<annulus_status_t>;
void Tell(void* told, annulus_status_t status) { static_cast<Told*>(told)->set_value(status); }

TEST(CallbacksTest, EachCallTellsItsOwnEnd) {
  Cluster(Far()).Run([](annulus_comm_t* comm, int) {
    std::vector<Told> told(3);
    std::vector<int32_t> values(3, 1);
    Calls calls;
    for (size_t i = 0; i < told.size(); ++i) {
      annulus_call_t& call = calls.Allreduce(&values[i], &values[i], 1, ANNULUS_INT32, ANNULUS_SUM);
      call.done = Tell;
      call.context = &told[i];
    }
    EXPECT_EQ(calls.Submit(comm, nullptr), ANNULUS_OK) << "nobody needs the request";
    for (size_t i = 0; i < told.size(); ++i) {
      EXPECT_EQ(told[i].get_future().get(), ANNULUS_OK);
      EXPECT_EQ(values[i], 2);
    }
  });
}

// A send that is under way when its communicator is destroyed. Over shared memory the peer may be reading its buffer.
struct LateSend {
  std::vector<int32_t> values = std::vector<int32_t>(16 * 1024, 1);
  Told told;
  std::promise<void> received;
};

TEST(CallbacksTest, WhatACallbackWritesIntoItsBufferIsNotReceived) {
  LateSend send;
  Cluster(Far()).Run([&send](annulus_comm_t* comm, int rank) {
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
    if (rank == 0) {
      Calls calls;
      annulus_call_t& call =
          calls.Add(ANNULUS_CALL_SEND, send.values.data(), nullptr, send.values.size(), ANNULUS_INT32);
      call.root = 1;
      call.context = &send;
      call.done = [](void* context, annulus_status_t status) {
        auto* const self = static_cast<LateSend*>(context);
        std::ranges::fill(self->values, 2);
        self->told.set_value(status);
        // The links are closed after this.
        static_cast<void>(self->received.get_future().wait_for(std::chrono::milliseconds(500)));
      };
      EXPECT_EQ(calls.Submit(comm, nullptr), ANNULUS_OK);
      return;  // Destroys it.
    }
    const annulus_status_t ended = send.told.get_future().get();
    std::vector<int32_t> arrived(send.values.size());
    const annulus_status_t status = annulus_recv(comm, arrived.data(), arrived.size(), ANNULUS_INT32, 0);
    send.received.set_value();
    EXPECT_TRUE(status == ANNULUS_OK || ended != ANNULUS_OK) << LastMessage(comm);
    if (status != ANNULUS_OK) return;
    EXPECT_EQ(std::ranges::count(arrived, 1), static_cast<ptrdiff_t>(arrived.size()));
  });
}

// A callback that makes another call and waits for it, as PowerSGD does.
struct Chain {
  annulus_comm_t* comm = nullptr;
  annulus_status_t destroyed = ANNULUS_OK;
  int32_t value = 1;
  Told told;
};

TEST(CallbacksTest, ACallbackMayWaitForOtherWorkButNotDestroyItsCommunicator) {
  Cluster(Far()).Run([](annulus_comm_t* comm, int) {
    Chain chain;
    chain.comm = comm;
    Calls calls;
    annulus_call_t& call = calls.Add(ANNULUS_CALL_BARRIER, nullptr, nullptr, 0, ANNULUS_INT32);
    call.context = &chain;
    call.done = [](void* context, annulus_status_t) {
      auto* const self = static_cast<Chain*>(context);
      annulus_request_t* request = nullptr;
      annulus_allreduce_async(self->comm, &self->value, &self->value, 1, ANNULUS_INT32, ANNULUS_SUM, &request);
      const annulus_status_t status = annulus_request_wait(request, -1);
      annulus_request_free(request);
      self->destroyed = annulus_comm_destroy(self->comm);
      self->told.set_value(status);
    };
    EXPECT_EQ(calls.Submit(comm, nullptr), ANNULUS_OK);
    EXPECT_EQ(chain.told.get_future().get(), ANNULUS_OK);
    EXPECT_EQ(chain.value, 2);
    EXPECT_EQ(chain.destroyed, ANNULUS_INVALID_ARGUMENT);
  });
}

TEST(CallbacksTest, DestroyTellsAllThatIsPendingAndThenReturns) {
  struct Pending {
    annulus_comm_t* comm = nullptr;
    std::atomic<int> aborted{0};
    std::atomic<int> refused{0};
  };
  Pending pending;
  const Cluster cluster(Far());
  ForEachRank(2, [&](int rank) {
    const UserConfig config = cluster.Config(rank);
    annulus_comm_t* comm = nullptr;
    ASSERT_EQ(annulus_comm_create(&config, &comm), ANNULUS_OK) << LastMessage();
    int32_t x = 0;
    if (rank == 0) {
      pending.comm = comm;
      for (const annulus_kind_t kind : {ANNULUS_CALL_BARRIER, ANNULUS_CALL_RECV, ANNULUS_CALL_BARRIER}) {
        Calls calls;
        annulus_call_t& call = calls.Rooted(kind, nullptr, &x, 1, ANNULUS_INT32, 1);
        call.context = &pending;
        call.done = [](void* context, annulus_status_t status) {
          auto* const self = static_cast<Pending*>(context);
          self->aborted += status == ANNULUS_OK ? 0 : 1;
          self->refused += annulus_barrier(self->comm) == ANNULUS_OK ? 0 : 1;  // Too late for new work.
        };
        EXPECT_EQ(calls.Submit(comm, nullptr), ANNULUS_OK);
      }
    }
    EXPECT_EQ(annulus_comm_destroy(comm), ANNULUS_OK);
  });
  EXPECT_EQ(pending.aborted, 3);
  EXPECT_EQ(pending.refused, 3);
}

TEST(CallbacksTest, TheRequestIsThereWhenTheCallbackRuns) {
  struct Context {
    annulus_request_t* request = nullptr;
    std::promise<annulus_request_t*> seen;
  };
  ClusterConfig config = Far();
  config.nranks = 1;
  Cluster(config).Run([](annulus_comm_t* comm, int) {
    for (int i = 0; i < 500; ++i) {
      Context context;
      Calls calls;
      annulus_call_t& call = calls.Add(ANNULUS_CALL_BARRIER, nullptr, nullptr, 0, ANNULUS_INT32);
      call.context = &context;
      call.done = [](void* of, annulus_status_t) {
        auto* const self = static_cast<Context*>(of);
        self->seen.set_value(self->request);
      };
      ASSERT_EQ(calls.Submit(comm, &context.request), ANNULUS_OK);
      ASSERT_NE(context.seen.get_future().get(), nullptr);
      EXPECT_EQ(annulus_request_free(context.request), ANNULUS_OK);
    }
  });
}

// Who waits for a call learns of its end without the callback, which then need not wake its thread; but it comes.
TEST(CallbacksTest, ACallbackComesSoonAfterItsCallWasWaitedFor) {
  Cluster(Far()).Run([](annulus_comm_t* comm, int rank) {
    for (int i = 0; i < 50; ++i) {
      std::vector<Told> told(3);
      int32_t x = 1;
      int32_t y = 1;
      Calls calls;
      const bool is_message = i % 3 == 2;
      for (int each = 0; each < (i % 3 == 1 ? 3 : 1); ++each) {
        const annulus_kind_t kind = rank == 0 ? ANNULUS_CALL_SEND : ANNULUS_CALL_RECV;
        annulus_call_t& call = is_message ? calls.Rooted(kind, &x, &y, 1, ANNULUS_INT32, 1 - rank)
                                          : calls.Allreduce(&x, &y, 1, ANNULUS_INT32, ANNULUS_SUM);
        call.done = Tell;
        call.context = &told[each];
      }
      ASSERT_EQ(calls.Do(comm), ANNULUS_OK);
      for (size_t each = 0; each < calls.size(); ++each) EXPECT_EQ(told[each].get_future().get(), ANNULUS_OK);
    }
  });
}

// How often the thread of callbacks has gone to sleep, as it sees that itself.
struct Sleeps {
  std::atomic<int64_t> count{0};
  std::atomic<int> calls{0};
  static void Note(void* context, annulus_status_t) {
    auto* const self = static_cast<Sleeps*>(context);
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    self->count = usage.ru_nvcsw;
    self->calls += 1;
  }
};

TEST(CallbacksTest, ACallThatIsWaitedForWakesNoThreadForItsCallback) {
  static constexpr int kCalls = 3000;
  using Clock = std::chrono::steady_clock;
  Cluster(Far()).Run([](annulus_comm_t* comm, int) {
    Sleeps sleeps;
    int32_t x = 1;
    Calls calls;
    annulus_call_t& call = calls.Allreduce(&x, &x, 1, ANNULUS_INT32, ANNULUS_SUM);
    call.done = Sleeps::Note;
    call.context = &sleeps;
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) ASSERT_EQ(calls.Do(comm), ANNULUS_OK);
    Told told;
    call.done = Tell;
    call.context = &told;
    ASSERT_EQ(calls.Submit(comm, nullptr), ANNULUS_OK);
    EXPECT_EQ(told.get_future().get(), ANNULUS_OK);
    const auto looks = std::chrono::ceil<std::chrono::milliseconds>(Clock::now() - begin).count();
    EXPECT_EQ(sleeps.calls, kCalls) << "a callback that may wait is called before later ones";
    EXPECT_LT(sleeps.count, kCalls / 10 + looks) << "it looks once in a millisecond";
  });
}

// Wherever the callback is when the communicator ends, its calls return and destroy waits for it no longer than that.
TEST(CallbacksTest, DestroyEndsWhileACallbackCallsAgainAndAgain) {
  struct Loop {
    annulus_comm_t* comm = nullptr;
    bool blocks = false;
    std::promise<void> began;
    std::promise<annulus_status_t> over;
  };
  for (int i = 0; i < 200; ++i) {
    Loop loop;
    loop.blocks = i % 2 == 0;
    annulus_config_t config;
    ASSERT_EQ(annulus_config_init(&config, sizeof config, 0), ANNULUS_OK);
    config.rank = 0;
    config.size = 1;
    ASSERT_EQ(annulus_comm_create(&config, &loop.comm), ANNULUS_OK) << LastMessage();
    Calls calls;
    annulus_call_t& call = calls.Add(ANNULUS_CALL_BARRIER, nullptr, nullptr, 0, ANNULUS_INT32);
    call.context = &loop;
    call.done = [](void* context, annulus_status_t status) {
      auto* const self = static_cast<Loop*>(context);
      self->began.set_value();
      while (status == ANNULUS_OK) {
        annulus_request_t* request = nullptr;
        status = annulus_barrier_async(self->comm, &request);
        if (self->blocks && status == ANNULUS_OK) status = annulus_barrier(self->comm);
        if (request != nullptr) annulus_request_wait(request, -1);
        annulus_request_free(request);
      }
      self->over.set_value(status);
    };
    ASSERT_EQ(calls.Submit(loop.comm, nullptr), ANNULUS_OK);
    loop.began.get_future().wait();
    EXPECT_EQ(annulus_comm_destroy(loop.comm), ANNULUS_OK);
    EXPECT_EQ(loop.over.get_future().get(), ANNULUS_ABORTED);
  }
}

}  // namespace
}  // namespace annulus
