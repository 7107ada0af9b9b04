// Bad input to every collective and message, blocking and asynchronous: null pointers, unaligned and overlapping
// buffers, unknown types, operations and roots, counts beyond memory, what differs between ranks, and use after an
// abort. Each is an error that names the culprit; what one rank can see for itself is refused before anything is sent.

#include <annulus.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr int kRanks = 2;
constexpr size_t kElements = 4;  // Elements of each rank's part.

// What may be wrong, as the C API takes it.
struct Operands {
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = kElements;
  int type_number = ANNULUS_FLOAT32;
  int op_number = ANNULUS_SUM;
  int root = 0;                    // Root of a collective, peer of a message.
  const size_t* counts = nullptr;  // Counts of the buffer with a part for every rank.
  annulus_type_t type() const { return static_cast<annulus_type_t>(type_number); }
  annulus_op_t op() const { return static_cast<annulus_op_t>(op_number); }
};

// What a call has.
enum : unsigned {
  kSend = 1,
  kSendAtRoot = 2,
  kRecv = 4,
  kRecvAtRoot = 8,
  kOp = 16,
  kRoot = 32,
  kParts = 64,
  kPeer = 128,
  kNoCount = 256
};

using Comm = annulus_comm_t*;
using RequestOut = annulus_request_t**;
struct Subject {
  const char* name;
  unsigned has;
  annulus_status_t (*run)(Comm, const Operands&);
  annulus_status_t (*submit)(Comm, const Operands&, RequestOut);

  bool sends(int rank) const { return (has & kSend) != 0 || ((has & kSendAtRoot) != 0 && rank == 0); }
  bool receives(int rank) const { return (has & kRecv) != 0 || ((has & kRecvAtRoot) != 0 && rank == 0); }
  // The parts' counts are read: everywhere, or on the root where only that has them.
  bool uses_parts(int rank) const {
    return (has & kParts) != 0 && (rank == 0 || (has & (kSendAtRoot | kRecvAtRoot)) == 0);
  }
};

// clang-format off
#define BOTH(function, ...)                                                                \
  [](Comm c, const Operands& o) { return annulus_##function(c, __VA_ARGS__); },            \
  [](Comm c, const Operands& o, RequestOut r) { return annulus_##function##_async(c, __VA_ARGS__, r); }

const Subject kSubjects[] = {
    {"allreduce", kSend | kRecv | kOp, BOTH(allreduce, o.send, o.recv, o.count, o.type(), o.op())},
    {"reduce_scatter", kSend | kRecv | kOp, BOTH(reduce_scatter, o.send, o.recv, o.count, o.type(), o.op())},
    {"allgather", kSend | kRecv, BOTH(allgather, o.send, o.recv, o.count, o.type())},
    {"broadcast", kSendAtRoot | kRecv | kRoot, BOTH(broadcast, o.send, o.recv, o.count, o.type(), o.root)},
    {"reduce", kSend | kRecvAtRoot | kOp | kRoot, BOTH(reduce, o.send, o.recv, o.count, o.type(), o.op(), o.root)},
    {"gather", kSend | kRecvAtRoot | kRoot, BOTH(gather, o.send, o.recv, o.count, o.type(), o.root)},
    {"scatter", kSendAtRoot | kRecv | kRoot, BOTH(scatter, o.send, o.recv, o.count, o.type(), o.root)},
    {"alltoall", kSend | kRecv, BOTH(alltoall, o.send, o.recv, o.count, o.type())},
    {"allgatherv", kSend | kRecv | kParts, BOTH(allgatherv, o.send, o.count, o.recv, o.counts, nullptr, o.type())},
    {"reduce_scatterv", kSend | kRecv | kOp | kParts, BOTH(reduce_scatterv, o.send, o.counts, nullptr, o.recv, o.count, o.type(), o.op())},
    {"gatherv", kSend | kRecvAtRoot | kRoot | kParts, BOTH(gatherv, o.send, o.count, o.recv, o.counts, nullptr, o.type(), o.root)},
    {"scatterv", kSendAtRoot | kRecv | kRoot | kParts, BOTH(scatterv, o.send, o.counts, nullptr, o.recv, o.count, o.type(), o.root)},
    {"alltoallv", kSend | kRecv | kParts | kNoCount, BOTH(alltoallv, o.send, o.counts, nullptr, o.recv, o.counts, nullptr, o.type())},
    {"send", kSend | kPeer, BOTH(send, o.send, o.count, o.type(), o.root)},
    {"recv", kRecv | kPeer, BOTH(recv, o.recv, o.count, o.type(), o.root)},
};
#undef BOTH
// clang-format on

// Buffers and counts that are good for every subject.
struct Good {
  std::vector<float> in = std::vector<float>(64, 1);
  std::vector<float> out = std::vector<float>(64);
  std::vector<size_t> counts = std::vector<size_t>(kRanks, kElements);

  Operands For(const Subject& subject, int rank) {
    Operands o;
    o.send = in.data();
    o.recv = out.data();
    o.counts = counts.data();
    if ((subject.has & kPeer) != 0) o.root = 1 - rank;
    return o;
  }
};

// Both forms refuse it, with `word` in the message.
void ExpectRefused(Comm comm, const Subject& subject, const Operands& operands, const std::string& word) {
  SCOPED_TRACE(std::string(subject.name) + ", " + word);
  annulus_request_t* request = nullptr;
  EXPECT_EQ(subject.run(comm, operands), ANNULUS_INVALID_ARGUMENT);
  EXPECT_NE(LastError(comm).message.find(word), std::string::npos) << LastError(comm).message;
  EXPECT_EQ(subject.submit(comm, operands, &request), ANNULUS_INVALID_ARGUMENT);
  EXPECT_NE(LastError(comm).message.find(word), std::string::npos) << LastError(comm).message;
  EXPECT_EQ(request, nullptr) << "outputs are written on success only";
}

void ExpectBuffersRefused(Comm comm, const Subject& subject, int rank, Good* good) {
  const auto with = [&](auto change) {
    Operands operands = good->For(subject, rank);
    change(&operands);
    return operands;
  };
  char* const odd = reinterpret_cast<char*>(good->out.data()) + 1;
  if (subject.sends(rank)) {
    ExpectRefused(comm, subject, with([](Operands* o) { o->send = nullptr; }), "sendbuf is null");
    ExpectRefused(comm, subject, with([&](Operands* o) { o->send = odd; }), "sendbuf is not aligned");
  }
  if (subject.receives(rank)) {
    ExpectRefused(comm, subject, with([](Operands* o) { o->recv = nullptr; }), "recvbuf is null");
    ExpectRefused(comm, subject, with([&](Operands* o) { o->recv = odd; }), "recvbuf is not aligned");
  }
  if (subject.sends(rank) && subject.receives(rank)) {
    for (size_t shift : {1, 2, 3}) {
      ExpectRefused(comm, subject, with([&](Operands* o) { o->recv = good->in.data() + shift; }), "overlap");
      ExpectRefused(comm, subject, with([&](Operands* o) { o->send = good->out.data() + shift; }), "overlap");
    }
  }
  if (!subject.uses_parts(rank)) return;
  ExpectRefused(comm, subject, with([](Operands* o) { o->counts = nullptr; }), "counts is null");
  const std::vector<size_t> endless = {kElements, SIZE_MAX};
  const std::vector<size_t> others = {kElements + 1, kElements + 1};
  ExpectRefused(comm, subject, with([&](Operands* o) { o->counts = endless.data(); }), "counts[1] is ");
  if ((subject.has & kNoCount) == 0)
    ExpectRefused(comm, subject, with([&](Operands* o) { o->counts = others.data(); }), "for the same part");
}

void ExpectNumbersRefused(Comm comm, const Subject& subject, int rank, Good* good) {
  Operands operands = good->For(subject, rank);
  for (int type : {-1, ANNULUS_COMPLEX128 + 1, 255, 256, 1 << 20}) {
    operands.type_number = type;
    ExpectRefused(comm, subject, operands, "no annulus_type_t");
  }
  operands = good->For(subject, rank);
  for (int op : {-1, ANNULUS_BXOR + 1, 15, 16, 255, 256, static_cast<int>(ANNULUS_OP_LAST)}) {
    operands.op_number = op;
    if ((subject.has & kOp) != 0) ExpectRefused(comm, subject, operands, "op is ");
  }
  operands = good->For(subject, rank);
  for (int root : {-1, kRanks, 1 << 20}) {
    operands.root = root;
    if ((subject.has & kRoot) != 0) ExpectRefused(comm, subject, operands, "root is " + std::to_string(root));
    if ((subject.has & kPeer) != 0) ExpectRefused(comm, subject, operands, "peer is " + std::to_string(root));
  }
  operands = good->For(subject, rank);
  operands.root = rank;
  if ((subject.has & kPeer) != 0) ExpectRefused(comm, subject, operands, "not this rank itself");
  operands = good->For(subject, rank);
  for (size_t count : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 8}) {
    operands.count = count;
    if ((subject.has & kNoCount) == 0) ExpectRefused(comm, subject, operands, "count is " + std::to_string(count));
  }
}

annulus_status_t RunGood(Comm comm, const Subject& subject, int rank, Good* good) {
  // A message needs its other half.
  const bool message = (subject.has & kPeer) != 0;
  const Subject& mine = message ? kSubjects[std::size(kSubjects) - 2 + rank] : subject;
  return mine.run(comm, good->For(mine, rank));
}

TEST(BadInputTest, WhatARankCanSeeItselfIsRefusedAndNothingIsSent) {
  Cluster(ClusterConfig()).Run([](Comm comm, int rank) {
    for (const Subject& subject : kSubjects) {
      SCOPED_TRACE(subject.name);
      Good good;
      ExpectBuffersRefused(comm, subject, rank, &good);
      ExpectNumbersRefused(comm, subject, rank, &good);
      EXPECT_EQ(subject.submit(comm, good.For(subject, rank), nullptr), ANNULUS_INVALID_ARGUMENT);
      EXPECT_NE(LastError(comm).message.find("request is null"), std::string::npos);
      annulus_request_t* request = nullptr;
      for (annulus_status_t status : {subject.run(nullptr, good.For(subject, rank)),
                                      subject.submit(nullptr, good.For(subject, rank), &request)}) {
        EXPECT_EQ(status, ANNULUS_INVALID_ARGUMENT);
        EXPECT_EQ(LastMessage(), "comm is null");
      }
      EXPECT_EQ(RunGood(comm, subject, rank, &good), ANNULUS_OK) << LastError(comm).message;
    }
  });
}

// Both ranks call the subject, rank 1 with what `differ` made of it; every rank is told the same.
void ExpectMismatch(const Subject& subject, const std::string& word, void (*differ)(Operands*)) {
  SCOPED_TRACE(std::string(subject.name) + ", " + word);
  std::string messages[kRanks];
  Tally told;
  ClusterConfig config;
  config.timeout_ms = 2000;  // Ranks that wait for each other, each for a root of its own, find out then.
  Cluster(config).Run([&](Comm comm, int rank) {
    Good good;
    const bool message = (subject.has & kPeer) != 0;
    const Subject& mine = message ? kSubjects[std::size(kSubjects) - 2 + rank] : subject;
    Operands operands = good.For(mine, rank);
    if (rank == 1) differ(&operands);
    std::vector<size_t> counts(kRanks, operands.count);
    if (operands.count != kElements) operands.counts = counts.data();
    annulus_status_t status = mine.run(comm, operands);
    // A rank that had all it needed learns of it in the next call.
    if (status == ANNULUS_OK) status = annulus_barrier(comm);
    EXPECT_EQ(status, ANNULUS_MISMATCH) << LastError(comm).message;
    messages[rank] = LastError(comm).message;
    told.Add();
    EXPECT_TRUE(told.WaitFor(kRanks));
  });
  EXPECT_EQ(messages[0], messages[1]);
}

TEST(BadInputTest, WhatDiffersBetweenRanksIsAMismatchForAll) {
  for (const Subject& subject : kSubjects) {
    if (std::string(subject.name) == "recv") continue;  // The other half of send.
    ExpectMismatch(subject, "count", [](Operands* o) { o->count = kElements + 1; });
    ExpectMismatch(subject, "type", [](Operands* o) { o->type_number = ANNULUS_INT32; });
    if ((subject.has & kOp) != 0) ExpectMismatch(subject, "op", [](Operands* o) { o->op_number = ANNULUS_MAX; });
    if ((subject.has & kRoot) != 0) ExpectMismatch(subject, "root", [](Operands* o) { o->root = 1; });
  }
}

TEST(BadInputTest, RanksThatAllTakeThemselvesForTheRootFindOutWhenSlotsAreFull) {
  ClusterConfig config;
  config.transport = "shm";
  config.timeout_ms = 60'000;
  const Nanoseconds begin = Now();
  Cluster(config).Run([&](Comm comm, int rank) {
    float data = 0;
    annulus_status_t status = ANNULUS_OK;
    for (int calls = 0; calls < 1'000'000 && status == ANNULUS_OK; ++calls) {
      status = annulus_broadcast(comm, &data, &data, 1, ANNULUS_FLOAT32, rank);
    }
    EXPECT_EQ(status, ANNULUS_MISMATCH) << LastError(comm).message;
    EXPECT_NE(LastError(comm).message.find("root"), std::string::npos) << LastError(comm).message;
  });
  EXPECT_LT(Now() - begin, 30 * kSecond);
}

TEST(BadInputTest, AfterAnAbortEverythingIsRefusedWithIt) {
  Tally aborted;
  Cluster(ClusterConfig()).Run([&](Comm comm, int rank) {
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
    if (rank == 1) annulus_comm_abort(comm, nullptr);
    const annulus_status_t after = annulus_barrier(comm);
    EXPECT_EQ(after, ANNULUS_ABORTED);
    aborted.Add();
    ASSERT_TRUE(aborted.WaitFor(kRanks));
    for (const Subject& subject : kSubjects) {
      SCOPED_TRACE(subject.name);
      Good good;
      annulus_request_t* request = nullptr;
      EXPECT_EQ(subject.run(comm, good.For(subject, rank)), ANNULUS_ABORTED);
      EXPECT_EQ(subject.submit(comm, good.For(subject, rank), &request), ANNULUS_ABORTED);
      EXPECT_EQ(request, nullptr);
    }
    annulus_request_t* request = nullptr;
    annulus_comm_t* child = nullptr;
    EXPECT_EQ(annulus_barrier_async(comm, &request), ANNULUS_ABORTED);
    EXPECT_EQ(annulus_submit(comm, nullptr, 0, &request), ANNULUS_ABORTED);
    EXPECT_EQ(annulus_comm_split(comm, 0, 0, &child), ANNULUS_ABORTED);
    EXPECT_EQ(annulus_comm_dup(comm, &child), ANNULUS_ABORTED);
    EXPECT_EQ(request, nullptr);
    EXPECT_EQ(child, nullptr);
    EXPECT_EQ(LastError(comm).rank, 1) << LastError(comm).message;
  });
}

TEST(BadInputTest, NullHandlesAndOutputsAreNamed) {
  Cluster(ClusterConfig()).Run([](Comm comm, int) {
    annulus_request_t* request = nullptr;
    annulus_comm_t* child = nullptr;
    annulus_op_t op = ANNULUS_SUM;
    annulus_error_t error = {};
    annulus_call_t call = {};
    int number = 0;
    char text[16];
    const std::pair<annulus_status_t (*)(const annulus_comm_t*, int*), const char*> getters[] = {
        {annulus_comm_rank, "rank"},
        {annulus_comm_size, "size"},
        {annulus_comm_local_rank, "local_rank"},
        {annulus_comm_local_size, "local_size"}};
    for (const auto& [getter, name] : getters) {
      EXPECT_EQ(getter(nullptr, &number), ANNULUS_INVALID_ARGUMENT) << name;
      EXPECT_EQ(getter(comm, nullptr), ANNULUS_INVALID_ARGUMENT) << name;
    }
    const auto null_comm = [](annulus_status_t status) {
      EXPECT_EQ(status, ANNULUS_INVALID_ARGUMENT);
      EXPECT_EQ(LastMessage(), "comm is null");
    };
    null_comm(annulus_barrier(nullptr));
    null_comm(annulus_barrier_async(nullptr, &request));
    null_comm(annulus_comm_split(nullptr, 0, 0, &child));
    null_comm(annulus_comm_dup(nullptr, &child));
    null_comm(annulus_comm_abort(nullptr, "a reason"));
    null_comm(annulus_comm_verdict(nullptr, &error));
    null_comm(annulus_run(nullptr, &call));
    null_comm(annulus_submit(nullptr, &call, 1, &request));
    null_comm(annulus_op_create_premul_sum(nullptr, 1, &op));
    null_comm(annulus_op_destroy(nullptr, op));
    EXPECT_EQ(annulus_comm_create(nullptr, nullptr), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_config_init(nullptr, sizeof(annulus_config_t), 0), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_config_value(nullptr, nullptr, text, sizeof text), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_config_value(nullptr, "rank", nullptr, 0), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_comm_split(comm, 0, 0, nullptr), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_comm_dup(comm, nullptr), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_comm_verdict(comm, nullptr), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_comm_verdict(comm, &error), ANNULUS_INVALID_ARGUMENT) << "struct_bytes is 0";
    EXPECT_EQ(annulus_last_error(nullptr), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_last_error(&error), ANNULUS_INVALID_ARGUMENT) << "struct_bytes is 0";
    EXPECT_EQ(annulus_run(comm, nullptr), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_run(comm, &call), ANNULUS_INVALID_ARGUMENT) << "struct_bytes is 0";
    EXPECT_EQ(annulus_submit(comm, nullptr, 1, &request), ANNULUS_INVALID_ARGUMENT);
    for (const size_t bytes : {size_t{0}, size_t{137}, ~size_t{0}}) {
      annulus_call_t group[2] = {};
      group[0].struct_bytes = bytes;
      EXPECT_EQ(annulus_submit(comm, group, 2, &request), ANNULUS_INVALID_ARGUMENT) << bytes;
    }
    EXPECT_EQ(annulus_mem_alloc(1, nullptr), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_mem_free(nullptr), ANNULUS_OK);
    EXPECT_EQ(annulus_comm_destroy(nullptr), ANNULUS_OK);
    EXPECT_EQ(annulus_barrier_async(comm, nullptr), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
}

}  // namespace
}  // namespace annulus
