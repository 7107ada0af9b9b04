// Small calls and messages that are started and waited for by the short cut: which ones take it, and that they end as
// others do.

#include <annulus.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "collectives/comm/communicator.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr size_t kCount = 5;
constexpr int kRepeats = 50;

annulus_status_t Finish(annulus_request_t* request) {
  const annulus_status_t status = annulus_request_wait(request, -1);
  EXPECT_EQ(annulus_request_free(request), ANNULUS_OK);
  return status;
}

struct Variant {
  const char* transport;
  int nranks;
};

class ShortCutTest : public testing::TestWithParam<Variant> {
 protected:
  ClusterConfig config() const {
    ClusterConfig config;
    config.transport = GetParam().transport;
    config.nranks = GetParam().nranks;
    config.tcp_sockets = 1;
    config.timeout_ms = kFarTimeoutMs;
    return config;
  }
  int nranks() const { return GetParam().nranks; }

  // What comes next repeats this.
  void Warm(annulus_comm_t* comm, int rank) const {
    for (int i = 0; i < 3; ++i) {
      const Numbers in = Contribution(rank, kCount, i);
      Numbers out(kCount);
      annulus_request_t* request = nullptr;
      ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
      ASSERT_EQ(Finish(request), ANNULUS_OK) << LastMessage();
    }
  }
};

// A call as the C API hands it on.
CallArguments SumOf(const Numbers& in, Numbers* out, const CallOptions* options) {
  CallArguments call;
  call.kind = CollectiveKind::kAllreduce;
  call.sendbuf = in.data();
  call.recvbuf = out->data();
  call.count = in.size();
  call.type = DataType::kInt64;
  call.options = options;
  return call;
}

CallArguments MessageOf(CollectiveKind kind, Numbers* numbers, int peer, const CallOptions* options) {
  CallArguments call = SumOf(*numbers, numbers, options);
  call.kind = kind;
  call.root = peer;
  return call;
}

bool TakesAll(annulus_comm_t* comm, std::span<const CallArguments> calls, annulus_request_t** request) {
  return reinterpret_cast<Communicator*>(comm)->SubmitAgain(calls, request);
}

bool TakesIt(annulus_comm_t* comm, const CallArguments& call, annulus_request_t** request) {
  return TakesAll(comm, {&call, 1}, request);
}

// The progress thread may still be at the call before: whoever waited for that hears of its end first.
bool WillTakeAll(annulus_comm_t* comm, std::span<const CallArguments> calls, annulus_request_t** request) {
  const Nanoseconds begin = Now();
  while (!TakesAll(comm, calls, request)) {
    if (Now() - begin > kSoon) return false;
    std::this_thread::yield();
  }
  return true;
}

bool WillTake(annulus_comm_t* comm, const CallArguments& call, annulus_request_t** request) {
  return WillTakeAll(comm, {&call, 1}, request);
}

TEST_P(ShortCutTest, LabelsDeadlinesAndCallbacksTakeIt) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    std::promise<annulus_status_t> told[2];
    CallOptions options;
    options.label = "a label that is too long for a string to hold it without memory of its own";
    options.timeout = kSecond * 100;
    options.done = [](void* context, annulus_status_t status) {
      static_cast<std::promise<annulus_status_t>*>(context)->set_value(status);
    };
    options.done_context = &told[0];
    const Numbers in = Contribution(rank, kCount, 7);
    Numbers out(kCount);
    Warm(comm, rank);
    annulus_request_t* request = nullptr;
    EXPECT_FALSE(TakesIt(comm, SumOf(in, &out, &options), &request)) << "there is no thread for callbacks yet";
    annulus_call_t first{};
    first.struct_bytes = sizeof first;
    first.kind = ANNULUS_CALL_ALLREDUCE;
    first.type = ANNULUS_INT64;
    first.sendbuf = in.data();
    first.recvbuf = out.data();
    first.count = kCount;
    first.done = options.done;
    first.context = options.done_context;
    ASSERT_EQ(annulus_submit(comm, &first, 1, &request), ANNULUS_OK);
    ASSERT_EQ(Finish(request), ANNULUS_OK);
    EXPECT_EQ(told[0].get_future().get(), ANNULUS_OK);

    options.done_context = &told[1];
    ASSERT_TRUE(WillTake(comm, SumOf(in, &out, &options), &request));
    ASSERT_EQ(Finish(request), ANNULUS_OK);
    EXPECT_EQ(told[1].get_future().get(), ANNULUS_OK);
    EXPECT_EQ(out, SumOfAll(nranks(), kCount, 7));

    for (const auto set : std::vector<void (*)(CallOptions*)>{[](CallOptions* o) { o->priority = 1; },
                                                              [](CallOptions* o) { o->agree_first = true; },
                                                              [](CallOptions* o) { o->on_stream = true; }}) {
      CallOptions other;
      set(&other);
      EXPECT_FALSE(TakesIt(comm, SumOf(in, &out, &other), &request));
    }
  });
}

TEST_P(ShortCutTest, SoDoMessagesWithThem) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Warm(comm, rank);
    if (rank > 1) return;
    Numbers sent(kCount, rank);
    Numbers received(kCount);
    for (int i = 0; i < 3; ++i) {  // The first one makes room for the others.
      annulus_request_t* requests[2] = {};
      annulus_received_t got{};
      got.struct_bytes = sizeof got;
      CallOptions options;
      options.label = "halo";
      options.timeout = kSecond * 100;
      const CallArguments send = MessageOf(CollectiveKind::kSend, &sent, 1 - rank, &options);
      CallOptions with_result = options;
      with_result.received = &got;
      const CallArguments receive = MessageOf(CollectiveKind::kRecv, &received, 1 - rank, &with_result);
      if (i == 0) {
        ASSERT_EQ(annulus_recv_async(comm, received.data(), kCount, ANNULUS_INT64, 1 - rank, &requests[0]), ANNULUS_OK);
        ASSERT_EQ(annulus_send_async(comm, sent.data(), kCount, ANNULUS_INT64, 1 - rank, &requests[1]), ANNULUS_OK);
      } else {
        ASSERT_TRUE(WillTake(comm, receive, &requests[0]));
        ASSERT_TRUE(WillTake(comm, send, &requests[1]));
      }
      for (annulus_request_t* const each : requests) ASSERT_EQ(Finish(each), ANNULUS_OK);
      EXPECT_EQ(received, Numbers(kCount, 1 - rank));
      if (i > 0) {
        EXPECT_EQ(got.source, 1 - rank);
        EXPECT_EQ(got.count, kCount);
      }
      std::ranges::fill(received, -1);
    }
  });
}

TEST_P(ShortCutTest, SoDoesAGroupOfManySmallMessages) {
  constexpr size_t kEach = 60;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Warm(comm, rank);
    if (rank > 1) return;
    for (int64_t round = 0; round < 5; ++round) {
      std::vector<Numbers> received(kEach, Numbers(kCount, -1));
      std::vector<Numbers> sent;
      std::vector<CallArguments> group;
      for (size_t i = 0; i < kEach; ++i) sent.emplace_back(kCount, round * 1000 + static_cast<int64_t>(i) * 10 + rank);
      for (size_t i = 0; i < kEach; ++i) {
        group.push_back(MessageOf(CollectiveKind::kRecv, &received[i], 1 - rank, nullptr));
        group.push_back(MessageOf(CollectiveKind::kSend, &sent[i], 1 - rank, nullptr));
      }
      annulus_request_t* request = nullptr;
      if (round > 0) {
        ASSERT_TRUE(WillTakeAll(comm, group, &request)) << "the first one has made room for the others";
      } else if (!TakesAll(comm, group, &request)) {
        auto* const communicator = reinterpret_cast<Communicator*>(comm);
        size_t refused = 0;
        const auto give = [&request](RequestHandle handle) { request = reinterpret_cast<annulus_request_t*>(handle); };
        ASSERT_TRUE(communicator->Submit(group, give, &refused).ok());
      }
      ASSERT_EQ(Finish(request), ANNULUS_OK) << LastMessage();
      for (size_t i = 0; i < kEach; ++i)
        EXPECT_EQ(received[i], Numbers(kCount, sent[i][0] - rank + (1 - rank))) << round << ", message " << i;
    }
  });
}

TEST_P(ShortCutTest, ItKeepsACallsOwnDeadlineAndLabel) {
  Tally ended;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Warm(comm, rank);
    if (rank == 0) {
      CallOptions options;
      options.label = "gradients";
      options.timeout = 300 * kMillisecond;
      const Numbers in = Contribution(rank, kCount, 0);
      Numbers out(kCount);
      annulus_request_t* request = nullptr;
      ASSERT_TRUE(WillTake(comm, SumOf(in, &out, &options), &request));
      const Nanoseconds begin = Now();
      EXPECT_EQ(Finish(request), ANNULUS_TIMEOUT);
      EXPECT_LT(Now() - begin, kSoon);
      annulus_error_t error{};
      error.struct_bytes = sizeof error;
      ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
      EXPECT_STREQ(error.label, "gradients");
      ended.Add();
    }
    ASSERT_TRUE(ended.WaitFor(1));
  });
}

TEST_P(ShortCutTest, ItKeepsAReceivesOwnDeadlineAndLabel) {
  Tally ended;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Warm(comm, rank);
    Numbers numbers(kCount);
    if (rank == 1) {
      EXPECT_EQ(annulus_send(comm, numbers.data(), kCount, ANNULUS_INT64, 0), ANNULUS_OK);
    }
    if (rank == 0) {
      EXPECT_EQ(annulus_recv(comm, numbers.data(), kCount, ANNULUS_INT64, 1), ANNULUS_OK);
      CallOptions options;
      options.label = "halo";
      options.timeout = 300 * kMillisecond;
      annulus_request_t* request = nullptr;
      // The first receive that is started has room made for it.
      if (!TakesIt(comm, MessageOf(CollectiveKind::kRecv, &numbers, 1, &options), &request)) {
        annulus_call_t call{};
        call.struct_bytes = sizeof call;
        call.kind = ANNULUS_CALL_RECV;
        call.recvbuf = numbers.data();
        call.count = kCount;
        call.type = ANNULUS_INT64;
        call.root = 1;
        call.label = options.label;
        call.timeout_ms = 300;
        ASSERT_EQ(annulus_submit(comm, &call, 1, &request), ANNULUS_OK);
      }
      const Nanoseconds begin = Now();
      EXPECT_EQ(Finish(request), ANNULUS_TIMEOUT);
      EXPECT_LT(Now() - begin, kSoon);
      annulus_error_t error{};
      error.struct_bytes = sizeof error;
      ASSERT_EQ(annulus_last_error(&error), ANNULUS_OK);
      EXPECT_STREQ(error.label, "halo");
      ended.Add();
    }
    ASSERT_TRUE(ended.WaitFor(1));
  });
}

// Waits, tests, frees and blocking calls of many requests, in an order that each rank draws for itself.
TEST_P(ShortCutTest, RequestsMayBeFinishedInAnyWayAndOrder) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    std::minstd_rand random(static_cast<unsigned>(rank + 1));
    for (int round = 0; round < kRepeats; ++round) {
      const size_t calls = 1 + static_cast<size_t>(round % 4);
      std::vector<Numbers> in;
      std::vector<Numbers> out(calls, Numbers(kCount));
      for (size_t i = 0; i < calls; ++i) in.push_back(Contribution(rank, kCount, round + static_cast<int>(i)));
      std::vector<annulus_request_t*> requests(calls);
      for (size_t i = 0; i < calls; ++i) ASSERT_EQ(SumAsync(comm, in[i], &out[i], &requests[i]), ANNULUS_OK);
      Numbers last(kCount);
      const bool blocks = random() % 3 == 0;
      if (blocks) {
        ASSERT_EQ(Sum(comm, Contribution(rank, kCount, -1), &last), ANNULUS_OK);
      }
      std::shuffle(requests.begin(), requests.end(), random);
      for (annulus_request_t* const request : requests) {
        const unsigned way = random() % 3;
        if (way == 0) {
          ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
        } else if (way == 1) {
          while (annulus_request_test(request) == ANNULUS_IN_PROGRESS) std::this_thread::yield();
        }
        ASSERT_EQ(annulus_request_free(request), ANNULUS_OK);
      }
      if (!blocks) {
        ASSERT_EQ(Sum(comm, Contribution(rank, kCount, -1), &last), ANNULUS_OK);
      }
      for (size_t i = 0; i < calls; ++i) ASSERT_EQ(out[i], SumOfAll(nranks(), kCount, round + static_cast<int>(i)));
      ASSERT_EQ(last, SumOfAll(nranks(), kCount, -1));
    }
  });
}

TEST_P(ShortCutTest, MessagesMoveBesideACallThatIsQueued) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Warm(comm, rank);
    const int next = (rank + 1) % nranks();
    const int prev = (rank + nranks() - 1) % nranks();
    for (int i = 0; i < kRepeats; ++i) {
      const Numbers in = Contribution(rank, kCount, i);
      Numbers out(kCount);
      annulus_request_t* requests[2] = {};
      ASSERT_EQ(SumAsync(comm, in, &out, &requests[0]), ANNULUS_OK);
      const Numbers sent(kCount, rank + i);
      Numbers received(kCount);
      ASSERT_EQ(annulus_recv_async(comm, received.data(), kCount, ANNULUS_INT64, prev, &requests[1]), ANNULUS_OK);
      ASSERT_EQ(annulus_send(comm, sent.data(), kCount, ANNULUS_INT64, next), ANNULUS_OK);
      for (annulus_request_t* const request : requests) ASSERT_EQ(Finish(request), ANNULUS_OK);
      ASSERT_EQ(received, Numbers(kCount, prev + i));
      ASSERT_EQ(out, SumOfAll(nranks(), kCount, i));
    }
  });
}

TEST_P(ShortCutTest, WhatIsQueuedEndsWithItsCommunicator) {
  Tally warm;
  Tally ended;
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Warm(comm, rank);
    warm.Add();
    ASSERT_TRUE(warm.WaitFor(nranks()));
    const Numbers in = Contribution(rank, kCount, 0);
    Numbers out(kCount);
    if (rank == 0) {
      annulus_request_t* request = nullptr;
      ASSERT_EQ(SumAsync(comm, in, &out, &request), ANNULUS_OK);
      EXPECT_EQ(annulus_comm_abort(comm, nullptr), ANNULUS_OK);
      EXPECT_EQ(Finish(request), ANNULUS_ABORTED);
      ended.Add();
    }
    ASSERT_TRUE(ended.WaitFor(1));
    annulus_status_t status = Sum(comm, in, &out);
    // What rank 0 sent when it started its call may be all that another rank needs.
    if (rank != 0 && status == ANNULUS_OK) status = Sum(comm, in, &out);
    EXPECT_EQ(status, ANNULUS_ABORTED);
  });
}

TEST_P(ShortCutTest, ARankThatLeavesWithAQueuedCallEndsThoseOfOthers) {
  Tally warm;
  std::vector<Numbers> in(3, Numbers(kCount));
  std::vector<Numbers> out(3, Numbers(kCount));
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Warm(comm, rank);
    warm.Add();
    ASSERT_TRUE(warm.WaitFor(nranks()));
    const auto place = static_cast<size_t>(rank);
    const Nanoseconds begin = Now();
    annulus_request_t* request = nullptr;
    annulus_status_t status = SumAsync(comm, in[place], &out[place], &request);
    if (rank != 0) return;  // Its communicator is destroyed.
    if (status == ANNULUS_OK) status = Finish(request);
    // The calls of the others may have been in time.
    if (status == ANNULUS_OK) status = Sum(comm, in[place], &out[place]);
    EXPECT_NE(status, ANNULUS_OK);
    EXPECT_LT(Now() - begin, kSoon);
  });
}

TEST_P(ShortCutTest, ACallThatDiffersOnOneRankIsFoundOut) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    Warm(comm, rank);
    const Numbers in = Contribution(rank, kCount, 0);
    Numbers out(kCount);
    annulus_request_t* request = nullptr;
    const annulus_op_t op = rank == 1 ? ANNULUS_MAX : ANNULUS_SUM;
    ASSERT_EQ(annulus_allreduce_async(comm, in.data(), out.data(), kCount, ANNULUS_INT64, op, &request), ANNULUS_OK);
    EXPECT_EQ(Finish(request), ANNULUS_MISMATCH);
    EXPECT_EQ(LastError(comm).sequence, 4u);
  });
}

INSTANTIATE_TEST_SUITE_P(Variants, ShortCutTest,
                         testing::Values(Variant{"shm", 2}, Variant{"shm", 3}, Variant{"tcp", 2}),
                         [](const auto& info) {
                           return std::string(info.param.transport) + std::to_string(info.param.nranks);
                         });

}  // namespace
}  // namespace annulus
