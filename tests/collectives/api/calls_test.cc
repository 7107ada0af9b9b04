// Calls as data: all fields that annulus_run and annulus_submit know, what they refuse by name, and callbacks.

#include "tests/collectives/harness/calls.h"

#include <annulus.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <vector>

#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

ClusterConfig Far() {
  ClusterConfig config;
  config.timeout_ms = kFarTimeoutMs;
  return config;
}

TEST(CallsTest, ARunCallDoesWhatTheFunctionDoes) {
  Cluster(Far()).Run([](annulus_comm_t* comm, int rank) {
    const int32_t in[2] = {rank + 1, 10 * (rank + 1)};
    int32_t out[2] = {0, 0};
    Calls calls;
    annulus_call_t& sum = calls.Allreduce(in, out, 2, ANNULUS_INT32, ANNULUS_SUM);
    sum.wire = ANNULUS_WIRE_EXACT;
    EXPECT_EQ(annulus_run(comm, &sum), ANNULUS_OK);
    EXPECT_EQ(out[1], 30);
    const size_t counts[2] = {1, 2};
    int32_t parts[3] = {0, 0, 0};
    annulus_call_t& gathered = calls.Add(ANNULUS_CALL_ALLGATHERV, in, parts, counts[rank], ANNULUS_INT32);
    gathered.recvcounts = counts;
    EXPECT_EQ(annulus_run(comm, &gathered), ANNULUS_OK);
    EXPECT_EQ(parts[0], 1);
    EXPECT_EQ(parts[2], 20);
    annulus_call_t& message =
        calls.Rooted(rank == 0 ? ANNULUS_CALL_SEND : ANNULUS_CALL_RECV, in, out, 1, ANNULUS_INT32, 1 - rank);
    EXPECT_EQ(annulus_run(comm, &message), ANNULUS_OK);
    EXPECT_TRUE(rank == 0 || out[0] == 1) << out[0];
  });
}

TEST(CallsTest, WhatIsNotBuiltIsRefusedByNameAndNothingHappens) {
  Cluster(Far()).Run([](annulus_comm_t* comm, int rank) {
    int32_t x = 1;
    const auto refused = [&](auto set, annulus_status_t expected, const std::string& word) {
      Calls calls;
      annulus_call_t& call = calls.Allreduce(&x, &x, 1, ANNULUS_INT32, ANNULUS_SUM);
      set(&call);
      annulus_request_t* request = nullptr;
      EXPECT_EQ(annulus_run(comm, &call), expected) << word;
      EXPECT_NE(LastMessage().find(word), std::string::npos) << LastMessage();
      EXPECT_EQ(calls.Submit(comm, &request), expected) << word;
      EXPECT_EQ(request, nullptr);
    };
    const auto unsupported = [&](auto set, const std::string& word) { refused(set, ANNULUS_UNSUPPORTED, word); };
    unsupported([](annulus_call_t* c) { c->stream_kind = 1; }, "stream_kind");
    unsupported([](annulus_call_t* c) { c->tag = 1; }, "tag");
    unsupported([](annulus_call_t* c) { c->wire = 2; }, "wire");
    unsupported([](annulus_call_t* c) { c->flags = uint64_t{1} << 63; }, "flags");
    const auto any = [](annulus_call_t* c) { c->kind = ANNULUS_CALL_RECV, c->root = ANNULUS_ANY_PEER; };
    unsupported(any, "ANNULUS_ANY_PEER");
    const auto invalid = [&](auto set, const std::string& word) { refused(set, ANNULUS_INVALID_ARGUMENT, word); };
    invalid([&](annulus_call_t* c) { c->stream = &x; }, "stream_kind is 0");
    invalid([](annulus_call_t* c) { c->kind = 0; }, "kind is 0");
    invalid([](annulus_call_t* c) { c->kind = 17; }, "kind is 17");
    invalid([](annulus_call_t* c) { c->timeout_ms = -1; }, "timeout_ms is -1");
    invalid([](annulus_call_t* c) { c->priority = 1; }, "ANNULUS_PRIORITIES");
    invalid([](annulus_call_t* c) { c->type = ANNULUS_TYPE_LAST; }, "type");
    Calls calls;
    annulus_call_t& call = calls.Allreduce(&x, &x, 1, ANNULUS_INT32, ANNULUS_SUM);
    call.done = [](void*, annulus_status_t) {};
    EXPECT_EQ(annulus_run(comm, &call), ANNULUS_INVALID_ARGUMENT) << "a blocking call has no callback";
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK) << "the communicator stays usable";
    EXPECT_EQ(x, 1) << rank;
  });
}

TEST(CallsTest, ACallMayHaveADeadlineOfItsOwn) {
  for (const annulus_kind_t kind : {ANNULUS_CALL_BARRIER, ANNULUS_CALL_RECV}) {
    Cluster(Far()).Run([kind](annulus_comm_t* comm, int rank) {
      if (rank == 1) return;
      int32_t x = 0;
      Calls calls;
      annulus_call_t& call = calls.Rooted(kind, nullptr, &x, 1, ANNULUS_INT32, 1);
      call.timeout_ms = 200;
      const Nanoseconds begin = Now();
      const annulus_status_t status = annulus_run(comm, &call);
      // Rank 1 may be gone already.
      EXPECT_TRUE(status == ANNULUS_TIMEOUT || status == ANNULUS_PEER_LOST) << status;
      EXPECT_LT(Now() - begin, kFarTimeoutMs * kMillisecond / 2);
    });
  }
}

TEST(ErrorsTest, ARefusalConcernsTheCallAndAVerdictTheCommunicator) {
  Cluster(Far()).Run([](annulus_comm_t* comm, int rank) {
    annulus_error_t error{};
    error.struct_bytes = sizeof error;
    Calls calls;
    annulus_call_t& call = calls.Allreduce(nullptr, nullptr, 1, ANNULUS_INT32, ANNULUS_SUM);
    call.label = "layer 7";
    EXPECT_EQ(annulus_run(comm, &call), ANNULUS_INVALID_ARGUMENT);
    ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
    EXPECT_EQ(error.status, ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(error.scope, ANNULUS_SCOPE_CALL);
    EXPECT_EQ(error.rank, rank);
    EXPECT_STREQ(error.collective, "allreduce");
    EXPECT_STREQ(error.label, "layer 7");
    EXPECT_STREQ(error.message, "sendbuf is null");
    EXPECT_STRNE(error.advice, "");
    ASSERT_EQ(annulus_comm_verdict(comm, &error), ANNULUS_OK);
    EXPECT_EQ(error.status, ANNULUS_OK);
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);

    if (rank == 1) annulus_comm_abort(comm, "the loss is not a number");
    int32_t x = 0;
    calls = Calls();
    calls.Allreduce(&x, &x, 1, ANNULUS_INT32, ANNULUS_SUM).label = "layer 8";
    EXPECT_EQ(annulus_run(comm, &calls.back()), ANNULUS_ABORTED);
    ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
    EXPECT_EQ(error.scope, ANNULUS_SCOPE_COMMUNICATOR);
    EXPECT_EQ(error.rank, 1);
    EXPECT_STREQ(error.label, "layer 8");
    EXPECT_STREQ(error.message, "rank 1 aborted the communicator: the loss is not a number");
    ASSERT_EQ(annulus_comm_verdict(comm, &error), ANNULUS_OK);
    EXPECT_EQ(error.status, ANNULUS_ABORTED);
    EXPECT_STREQ(error.message, "rank 1 aborted the communicator: the loss is not a number");
    annulus_request_t* request = nullptr;
    EXPECT_EQ(annulus_barrier_async(nullptr, &request), ANNULUS_INVALID_ARGUMENT);
    ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
    EXPECT_EQ(error.scope, ANNULUS_SCOPE_CALL);
  });
}

TEST(ErrorsTest, AFailedCreateLeavesMoreThanText) {
  annulus_config_t config;
  ASSERT_EQ(annulus_config_init(&config, sizeof config, 0), ANNULUS_OK);
  config.rank = 3;
  config.size = 2;
  annulus_comm_t* comm = reinterpret_cast<annulus_comm_t*>(&config);
  EXPECT_EQ(annulus_comm_create(&config, &comm), ANNULUS_INVALID_ARGUMENT);
  EXPECT_EQ(comm, nullptr);
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
  EXPECT_EQ(error.status, ANNULUS_INVALID_ARGUMENT);
  EXPECT_EQ(error.scope, ANNULUS_SCOPE_CALL);
  EXPECT_NE(std::string(error.message).find("rank"), std::string::npos) << error.message;
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

}  // namespace
}  // namespace annulus
