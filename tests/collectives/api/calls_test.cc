// Calls as data: all fields that annulus_run and annulus_submit know, and what they refuse by name.

#include "tests/collectives/harness/calls.h"

#include <annulus.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

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

// A call whose every field would do harm where it is looked at.
annulus_call_t Rubbish(annulus_kind_t kind) {
  annulus_call_t call{};
  call.struct_bytes = sizeof call;
  call.kind = kind;
  call.type = static_cast<annulus_type_t>(99);
  call.op = static_cast<annulus_op_t>(77);
  call.root = 99;
  call.count = SIZE_MAX / 2;
  const auto nowhere = reinterpret_cast<void*>(uintptr_t{3});
  call.sendbuf = call.recvbuf = nowhere;
  call.sendcounts = call.sendoffsets = call.recvcounts = call.recvoffsets = static_cast<size_t*>(nowhere);
  return call;
}

TEST(CallsTest, FieldsThatTheKindDoesNotUseAreIgnored) {
  Cluster(Far()).Run([](annulus_comm_t* comm, int rank) {
    int32_t in[2] = {rank + 1, rank + 1};
    int32_t out[2] = {0, 0};
    const size_t counts[2] = {1, 1};
    const auto do_both = [&](annulus_kind_t kind, auto set) {
      for (const bool blocks : {true, false}) {
        annulus_call_t call = Rubbish(kind);
        if (kind != ANNULUS_CALL_BARRIER) call.type = ANNULUS_INT32;
        set(&call);
        annulus_request_t* request = nullptr;
        annulus_status_t status = blocks ? annulus_run(comm, &call) : annulus_submit(comm, &call, 1, &request);
        if (status == ANNULUS_OK && !blocks) status = annulus_request_wait(request, -1);
        EXPECT_EQ(status, ANNULUS_OK) << kind << ": " << LastMessage();
        annulus_request_free(request);
      }
    };
    const auto plain = [&](annulus_call_t* c) { c->sendbuf = in, c->recvbuf = out, c->count = 1; };
    const auto with_root = [&](annulus_call_t* c) { plain(c), c->root = 0; };
    const auto send_parts = [&](annulus_call_t* c) { plain(c), c->sendcounts = counts, c->sendoffsets = nullptr; };
    const auto recv_parts = [&](annulus_call_t* c) { plain(c), c->recvcounts = counts, c->recvoffsets = nullptr; };
    do_both(ANNULUS_CALL_ALLREDUCE, [&](annulus_call_t* c) { plain(c), c->op = ANNULUS_SUM; });
    EXPECT_EQ(out[0], 3);
    do_both(ANNULUS_CALL_REDUCE_SCATTER, [&](annulus_call_t* c) { plain(c), c->op = ANNULUS_SUM; });
    do_both(ANNULUS_CALL_ALLGATHER, plain);
    EXPECT_EQ(out[1], 2);
    do_both(ANNULUS_CALL_BROADCAST, with_root);
    do_both(ANNULUS_CALL_REDUCE, [&](annulus_call_t* c) { with_root(c), c->op = ANNULUS_SUM; });
    do_both(ANNULUS_CALL_BARRIER, [](annulus_call_t*) {});
    do_both(ANNULUS_CALL_GATHER, with_root);
    do_both(ANNULUS_CALL_SCATTER, with_root);
    do_both(ANNULUS_CALL_ALLTOALL, plain);
    EXPECT_EQ(out[1], 2);
    do_both(ANNULUS_CALL_ALLGATHERV, recv_parts);
    do_both(ANNULUS_CALL_REDUCE_SCATTERV, [&](annulus_call_t* c) { send_parts(c), c->op = ANNULUS_SUM; });
    do_both(ANNULUS_CALL_GATHERV, [&](annulus_call_t* c) { recv_parts(c), c->root = 0; });
    do_both(ANNULUS_CALL_SCATTERV, [&](annulus_call_t* c) { send_parts(c), c->root = 0; });
    do_both(ANNULUS_CALL_ALLTOALLV, [&](annulus_call_t* c) { send_parts(c), recv_parts(c), c->count = SIZE_MAX; });
    EXPECT_EQ(out[1], 2);
    const auto message = [&](annulus_call_t* c) {
      c->count = 1, c->root = 1 - rank;
      rank == 0 ? c->sendbuf = out : c->recvbuf = out;
    };
    do_both(rank == 0 ? ANNULUS_CALL_SEND : ANNULUS_CALL_RECV, message);
  });
}

TEST(CallsTest, WhatIsNotBuiltIsRefusedByNameAndNothingHappens) {
  Cluster(Far()).Run([](annulus_comm_t* comm, int rank) {
    int32_t x = 1;
    int32_t same = 1;  // The refused calls repeat one that succeeded, for which there is a short cut.
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(annulus_allreduce(comm, &same, &same, 1, ANNULUS_INT32, ANNULUS_SUM), ANNULUS_OK);
    }
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
    unsupported([](annulus_call_t* c) { c->wire = 2; }, "wire");
    unsupported([](annulus_call_t* c) { c->flags = uint64_t{1} << 63; }, "flags");
    const auto invalid = [&](auto set, const std::string& word) { refused(set, ANNULUS_INVALID_ARGUMENT, word); };
    invalid([&](annulus_call_t* c) { c->stream = &x; }, "stream_kind is 0");
    invalid([](annulus_call_t* c) { c->kind = 0; }, "kind is 0");
    invalid([](annulus_call_t* c) { c->kind = 17; }, "kind is 17");
    invalid([](annulus_call_t* c) { c->timeout_ms = -1; }, "timeout_ms is -1");
    invalid([](annulus_call_t* c) { c->timeout_ms = INT64_MIN; }, "timeout_ms is -9223372036854775808");
    invalid([](annulus_call_t* c) { c->timeout_ms = INT64_MAX; }, "timeout_ms is 9223372036854775807");
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

// The outcome of `calls`, which only rank 0 makes; the other rank stays until it is known.
annulus_status_t MissedByTheOther(const std::function<annulus_status_t(annulus_comm_t* comm)>& call) {
  annulus_status_t outcome = ANNULUS_OK;
  Tally over;
  Cluster(Far()).Run([&](annulus_comm_t* comm, int rank) {
    if (rank == 1) {
      EXPECT_TRUE(over.WaitFor(1));
      return;
    }
    const Nanoseconds begin = Now();
    outcome = call(comm);
    EXPECT_LT(Now() - begin, kFarTimeoutMs * kMillisecond / 2);
    over.Add();
  });
  return outcome;
}

TEST(CallsTest, ACallMayHaveADeadlineOfItsOwn) {
  int32_t x[2] = {0, 0};
  for (const annulus_kind_t kind : {ANNULUS_CALL_BARRIER, ANNULUS_CALL_RECV}) {
    Calls calls;
    calls.Rooted(kind, nullptr, x, 1, ANNULUS_INT32, 1).timeout_ms = 200;
    EXPECT_EQ(MissedByTheOther([&](annulus_comm_t* comm) { return annulus_run(comm, &calls.back()); }),
              ANNULUS_TIMEOUT);
    EXPECT_EQ(MissedByTheOther([&](annulus_comm_t* comm) { return calls.Do(comm); }), ANNULUS_TIMEOUT);
  }
  Calls group;  // Sent as one, with the longest of their deadlines.
  group.Allreduce(&x[0], &x[0], 1, ANNULUS_INT32, ANNULUS_SUM).timeout_ms = 1;
  group.Allreduce(&x[1], &x[1], 1, ANNULUS_INT32, ANNULUS_SUM).timeout_ms = 400;
  const Nanoseconds begin = Now();
  EXPECT_EQ(MissedByTheOther([&](annulus_comm_t* comm) { return group.Do(comm); }), ANNULUS_TIMEOUT);
  EXPECT_GE(Now() - begin, 400 * kMillisecond);
}

}  // namespace
}  // namespace annulus
