// Small collectives of every kind that come again and again: the same results and refusals as ever, in every form.

#include <annulus.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/collectives/harness/c_call.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/collectives/harness/rank_threads.h"

namespace annulus {
namespace {

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kAllreduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllgather, CollectiveKind::kBroadcast,
    CollectiveKind::kReduce,    CollectiveKind::kGather,        CollectiveKind::kScatter,   CollectiveKind::kAlltoall};
constexpr int kRepeats = 12;

struct Variant {
  const char* transport;
  int nranks;
};

class RepeatedKindsTest : public testing::TestWithParam<Variant> {
 protected:
  int nranks() const { return GetParam().nranks; }
  ClusterConfig config() const {
    ClusterConfig config;
    config.transport = GetParam().transport;
    config.nranks = nranks();
    config.tcp_sockets = 1;
    config.checksum = nranks() == 3;
    return config;
  }
};

Call CallOfKind(CollectiveKind kind, size_t count, int root, DataType type = DataType::kFloat32) {
  Call call;
  call.kind = kind;
  call.type = type;
  call.count = count;
  call.root = HasRoot(kind) ? root : 0;
  return call;
}

// One rank's buffers for a call, and what is to be in them when it has ended.
class OwnBuffers {
 public:
  OwnBuffers(const Call& call, int rank, int nranks, int round) : call_(call), rank_(rank) {
    for (int r = 0; r < nranks; ++r)
      inputs_.push_back(MakeInput(call.type, InputElements(call, nranks), r, static_cast<uint64_t>(round)));
    send_ = inputs_[static_cast<size_t>(rank)];
    recv_.assign(OutputElements(call, nranks) * TypeBytes(call.type), std::byte{0x5a});
  }

  // Has the input lie in the output, or the output in the input, if the kind may.
  void BeInPlace() {
    const size_t own = call_.count * TypeBytes(call_.type) * static_cast<size_t>(rank_);
    const bool send_has_parts = SendHolds(call_.kind, rank_ == call_.root) == Holding::kParts;
    const bool recv_has_parts = RecvHolds(call_.kind, rank_ == call_.root) == Holding::kParts;
    if (send_has_parts && recv_has_parts) return;
    if (send_has_parts) {
      out_ = send_.data() + own;
    } else if (RecvHolds(call_.kind, rank_ == call_.root) != Holding::kNothing) {
      std::byte* const place = recv_.data() + (recv_has_parts ? own : 0);
      if (SendHolds(call_.kind, rank_ == call_.root) == Holding::kOwn) std::copy(send_.begin(), send_.end(), place);
      in_ = place;
    }
  }

  const void* in() const { return in_ != nullptr ? in_ : send_.data(); }
  void* out() { return out_ != nullptr ? out_ : recv_.data(); }

  void Check() {
    const Bytes expected = ExpectedOutput(call_, inputs_, rank_);
    const auto* const begin = static_cast<const std::byte*>(out());
    if (expected.empty()) return;
    EXPECT_EQ(Bytes(begin, begin + expected.size()), expected) << KindName(call_.kind) << " on rank " << rank_;
  }

 private:
  const Call call_;
  const int rank_;
  std::vector<Bytes> inputs_;
  Bytes send_;
  Bytes recv_;
  const std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
};

annulus_status_t Do(annulus_comm_t* comm, const Call& call, const void* in, void* out) {
  return IsDirect(call.kind) ? RunPartsCall(comm, {call, in, out}) : RunCall(comm, call, in, out);
}

annulus_status_t Submit(annulus_comm_t* comm, const Call& call, const void* in, void* out,
                        annulus_request_t** request) {
  if (IsDirect(call.kind)) return SubmitPartsCall(comm, {call, in, out}, request);
  return SubmitCall(comm, call, in, out, request);
}

void Wait(annulus_comm_t* comm, annulus_request_t* request) {
  ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK) << LastMessage(comm);
  ASSERT_EQ(annulus_request_free(request), ANNULUS_OK);
}

// The ranks need not make a call in the same form.
void RunRound(annulus_comm_t* comm, const Call& call, int rank, int nranks, int round) {
  OwnBuffers first(call, rank, nranks, round);
  OwnBuffers second(call, rank, nranks, round + 1);
  if ((round + rank) % 2 == 0) second.BeInPlace();
  if ((round + rank) % 3 == 0) {
    ASSERT_EQ(Do(comm, call, first.in(), first.out()), ANNULUS_OK) << LastMessage(comm);
    ASSERT_EQ(Do(comm, call, second.in(), second.out()), ANNULUS_OK) << LastMessage(comm);
  } else {
    annulus_request_t* one = nullptr;
    annulus_request_t* other = nullptr;
    ASSERT_EQ(Submit(comm, call, first.in(), first.out(), &one), ANNULUS_OK) << LastMessage(comm);
    if (round % 2 == 0) Wait(comm, one);
    ASSERT_EQ(Submit(comm, call, second.in(), second.out(), &other), ANNULUS_OK) << LastMessage(comm);
    if (round % 2 == 1) Wait(comm, one);
    Wait(comm, other);
  }
  first.Check();
  second.Check();
}

TEST_P(RepeatedKindsTest, ResultsAreRightInAnyForm) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    for (const CollectiveKind kind : kKinds) {
      for (const size_t count : {5, 1, 0, 2000}) {
        for (const int root : {0, nranks() - 1}) {
          const Call call = CallOfKind(kind, count, root);
          for (int round = 0; round < kRepeats; ++round) {
            ASSERT_NO_FATAL_FAILURE(RunRound(comm, call, rank, nranks(), round))
                << KindName(kind) << ", " << count << ", root " << root;
          }
        }
      }
    }
  });
}

// More calls than a communicator remembers, in an order that is random, but the same on all ranks.
TEST_P(RepeatedKindsTest, ResultsAreRightWhicheverCallWasBefore) {
  std::vector<Call> calls;
  for (const CollectiveKind kind : kKinds) {
    for (const size_t count : {3, 4}) calls.push_back(CallOfKind(kind, count, 0));
    if (HasRoot(kind)) calls.push_back(CallOfKind(kind, 3, nranks() - 1));
    if (Reduces(kind)) {
      calls.push_back(calls.back());
      calls.back().op = ReduceOp::kMax;
    }
    calls.push_back(CallOfKind(kind, 3, 0, DataType::kInt64));
  }
  calls.push_back(CallOfKind(CollectiveKind::kAllreduce, 100'000, 0));
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    std::mt19937_64 random(nranks());
    std::vector<Call> own = calls;
    for (const size_t among : {size_t{2}, size_t{3}, size_t{8}, calls.size()}) {
      std::ranges::shuffle(own, random);
      for (int round = 0; round < 100; ++round) {
        const Call& call = own[random() % among];
        ASSERT_NO_FATAL_FAILURE(RunRound(comm, call, rank, nranks(), round)) << KindName(call.kind) << ", " << among;
      }
    }
  });
}

// One field of rank 1's call differs from what was repeated before, and from the others' calls.
void ExpectMismatch(const ClusterConfig& config, const Call& usual, const Call& other, const std::string& field) {
  SCOPED_TRACE(std::string(KindName(usual.kind)) + ", " + field);
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    for (int round = 0; round < 3; ++round) ASSERT_NO_FATAL_FAILURE(RunRound(comm, usual, rank, config.nranks, round));
    const Call& call = rank == 1 ? other : usual;
    OwnBuffers own(call, rank, config.nranks, 0);
    annulus_status_t status = Do(comm, call, own.in(), own.out());
    // Who only sends hears of it in the next call.
    if (status == ANNULUS_OK) status = annulus_barrier(comm);
    EXPECT_EQ(status, ANNULUS_MISMATCH) << LastMessage(comm);
    EXPECT_NE(LastMessage(comm).find(field), std::string::npos) << LastMessage(comm);
  });
}

TEST_P(RepeatedKindsTest, WhatDiffersOnOneRankIsFoundOut) {
  for (const CollectiveKind kind : kKinds) {
    const Call usual = CallOfKind(kind, 5, 0);
    Call other = usual;
    other.type = DataType::kInt32;
    ExpectMismatch(config(), usual, other, "int32");
    other = usual;
    other.count = 6;
    ExpectMismatch(config(), usual, other, "count");
    other.count = 100'000;  // Goes another way.
    ExpectMismatch(config(), usual, other, "count");
    other = usual;
    other.op = ReduceOp::kMax;
    if (Reduces(kind)) ExpectMismatch(config(), usual, other, "max");
    // Where each takes itself for the root of a broadcast or scatter, nobody waits.
    other = usual;
    other.root = 1;
    if (kind == CollectiveKind::kReduce || kind == CollectiveKind::kGather)
      ExpectMismatch(config(), usual, other, "root");
  }
}

TEST_P(RepeatedKindsTest, ABadBufferIsRefusedAndTheCommunicatorStaysUsable) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    for (const CollectiveKind kind : kKinds) {
      const Call call = CallOfKind(kind, 4, 0);
      for (int round = 0; round < 2; ++round) ASSERT_NO_FATAL_FAILURE(RunRound(comm, call, rank, nranks(), round));
      const bool sends = SendHolds(kind, rank == 0) != Holding::kNothing;
      const bool receives = RecvHolds(kind, rank == 0) != Holding::kNothing;
      OwnBuffers own(call, rank, nranks(), 0);
      const auto* const in = static_cast<const std::byte*>(own.in());
      auto* const out = static_cast<std::byte*>(own.out());
      if (sends) {
        EXPECT_EQ(Do(comm, call, nullptr, out), ANNULUS_INVALID_ARGUMENT) << KindName(kind);
        EXPECT_EQ(Do(comm, call, in + 1, out), ANNULUS_INVALID_ARGUMENT) << KindName(kind);
      }
      if (receives) {
        EXPECT_EQ(Do(comm, call, in, nullptr), ANNULUS_INVALID_ARGUMENT) << KindName(kind);
        EXPECT_EQ(Do(comm, call, in, out + 2), ANNULUS_INVALID_ARGUMENT) << KindName(kind);
      }
      if (sends && receives) {
        EXPECT_EQ(Do(comm, call, out + 4, out), ANNULUS_INVALID_ARGUMENT) << KindName(kind);
      }
      ASSERT_NO_FATAL_FAILURE(RunRound(comm, call, rank, nranks(), 7));
    }
  });
}

// Nobody takes what the root sends, so at some time it cannot leave any more.
TEST_P(RepeatedKindsTest, ADeadlineEndsWhatARootSendsAndItsWaitIsForAPeer) {
  ClusterConfig slow = config();
  slow.timeout_ms = 1000;
  Tally ended;
  Cluster(slow).Run([&](annulus_comm_t* comm, int rank) {
    const Call call = CallOfKind(CollectiveKind::kBroadcast, 2000, 0);
    for (int round = 0; round < 2; ++round) ASSERT_NO_FATAL_FAILURE(RunRound(comm, call, rank, nranks(), round));
    if (rank != 0) {
      ASSERT_TRUE(ended.WaitFor(1));
      return;
    }
    OwnBuffers own(call, rank, nranks(), 0);
    annulus_status_t status = ANNULUS_OK;
    const Deadline deadline = DeadlineAfter(kPatience);
    while (status == ANNULUS_OK && Now() < deadline) status = Do(comm, call, own.in(), own.out());
    EXPECT_EQ(status, ANNULUS_TIMEOUT);
    uint64_t waited_ns = 0;  // For whoever was the first to which nothing could be sent.
    for (int peer = 1; peer < nranks(); ++peer) {
      annulus_peer_counters_t counters{};
      counters.struct_bytes = sizeof counters;
      ASSERT_EQ(annulus_comm_peer_counters(comm, peer, &counters), ANNULUS_OK);
      waited_ns += counters.waited_ns;
    }
    EXPECT_GT(waited_ns, static_cast<uint64_t>(500 * kMillisecond));
    ended.Add();
  });
}

TEST_P(RepeatedKindsTest, APeerThatLeavesEndsThem) {
  for (const CollectiveKind kind : kKinds) {
    Tally warm;
    Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
      const int root = kind == CollectiveKind::kReduce || kind == CollectiveKind::kGather ? 0 : nranks() - 1;
      const Call call = CallOfKind(kind, 5, root);
      for (int round = 0; round < 3; ++round) ASSERT_NO_FATAL_FAILURE(RunRound(comm, call, rank, nranks(), round));
      warm.Add();
      ASSERT_TRUE(warm.WaitFor(nranks()));
      if (rank == nranks() - 1) return;  // Its communicator is destroyed.
      OwnBuffers own(call, rank, nranks(), 0);
      const Nanoseconds begin = Now();
      annulus_status_t status = ANNULUS_OK;
      while (status == ANNULUS_OK && Now() < begin + kPatience) status = Do(comm, call, own.in(), own.out());
      EXPECT_NE(status, ANNULUS_OK) << KindName(kind);
      EXPECT_LT(Now() - begin, kSoon);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, RepeatedKindsTest,
                         testing::Values(Variant{"shm", 2}, Variant{"shm", 3}, Variant{"tcp", 2}, Variant{"tcp", 3}),
                         [](const auto& info) {
                           return std::string(info.param.transport) + std::to_string(info.param.nranks);
                         });

}  // namespace
}  // namespace annulus
