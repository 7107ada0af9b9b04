// Small collectives whose parts differ in size, again and again: the same results and refusals as ever, in every form,
// and where ranks go different ways because each knows only its own parts.

#include <annulus.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "collectives/comm/communicator.h"
#include "tests/collectives/harness/c_call.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/parts_job.h"

namespace annulus {
namespace {

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllgatherv, CollectiveKind::kReduceScatterv,
                                     CollectiveKind::kGatherv, CollectiveKind::kScatterv, CollectiveKind::kAlltoallv};

struct Variant {
  const char* transport;
  int nranks;
  int64_t slice_bytes = 0;  // 4096: the small parts of the last test are several slices.
};

class RepeatedPartsTest : public testing::TestWithParam<Variant> {
 protected:
  int nranks() const { return GetParam().nranks; }
  ClusterConfig config() const {
    ClusterConfig config;
    config.transport = GetParam().transport;
    config.nranks = nranks();
    config.tcp_sockets = 1;
    return config;
  }
  PartsJob JobOf(CollectiveKind kind, unsigned seed, std::initializer_list<size_t> sizes) const {
    PartsJob job{{}, {}, seed % 2 == 1, nranks()};
    job.call.kind = kind;
    job.call.root = HasRoot(kind) ? static_cast<int>(seed) % nranks() : 0;
    job.counts = MakeCounts(kind, nranks(), job.call.root, seed, {sizes.begin(), sizes.size()});
    return job;
  }
};

// One rank's side of a job, which may be called again and again.
class OwnCall {
 public:
  OwnCall(const PartsJob& job, int rank)
      : job_(job), rank_(rank), send_(job.Send(rank)), recv_(job.Recv(rank)), input_(job.Input(rank)) {
    output_.assign(recv_.elements * TypeBytes(job.call.type), std::byte{0xcd});
    parts_.call = job.call;
    parts_.call.count = job.Own(rank);
    parts_.in = input_.data();
    parts_.out = output_.data();
    parts_.send_counts = job.CountsOf(send_);
    parts_.send_offsets = job.OffsetsOf(send_);
    parts_.recv_counts = job.CountsOf(recv_);
    parts_.recv_offsets = job.OffsetsOf(recv_);
  }

  // To be changed by tests of what is wrong.
  PartsCall* parts() { return &parts_; }

  void Run(annulus_comm_t* comm) {
    ASSERT_EQ(RunPartsCall(comm, parts_), ANNULUS_OK) << LastMessage(comm);
    Check();
  }

  // The arrays are gone before anyone waits.
  void Start(annulus_comm_t* comm, annulus_request_t** request) {
    PartsCall lent = parts_;
    std::vector<size_t> copies[4];
    const size_t** const arrays[] = {&lent.send_counts, &lent.send_offsets, &lent.recv_counts, &lent.recv_offsets};
    for (int i = 0; i < 4; ++i) {
      if (*arrays[i] == nullptr) continue;
      copies[i].assign(*arrays[i], *arrays[i] + job_.n);
      *arrays[i] = copies[i].data();
    }
    ASSERT_EQ(SubmitPartsCall(comm, lent, request), ANNULUS_OK) << LastMessage(comm);
    for (std::vector<size_t>& copy : copies) std::fill(copy.begin(), copy.end(), size_t{1} << 40);
  }
  void Wait(annulus_comm_t* comm, annulus_request_t* request) {
    ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK) << LastMessage(comm);
    ASSERT_EQ(annulus_request_free(request), ANNULUS_OK);
    Check();
  }

 private:
  void Check() {
    if (!recv_.used) return;
    Bytes expected(output_.size(), std::byte{0xcd});
    job_.Overlay(rank_, expected.data());
    EXPECT_EQ(output_, expected) << KindName(job_.call.kind) << " on rank " << rank_;
    std::fill(output_.begin(), output_.end(), std::byte{0xcd});
  }

  const PartsJob job_;
  const int rank_;
  const PartsSide send_;
  const PartsSide recv_;
  const Bytes input_;
  Bytes output_;
  PartsCall parts_;
};

// The ranks need not make a call in the same form.
void RunRounds(annulus_comm_t* comm, const PartsJob& job, int rank) {
  OwnCall first(job, rank);
  OwnCall second(job, rank);
  for (int round = 0; round < 6; ++round) {
    if ((round + rank) % 3 == 0) {
      ASSERT_NO_FATAL_FAILURE(first.Run(comm));
      ASSERT_NO_FATAL_FAILURE(second.Run(comm));
      continue;
    }
    annulus_request_t* one = nullptr;
    annulus_request_t* other = nullptr;
    ASSERT_NO_FATAL_FAILURE(first.Start(comm, &one));
    if (round % 2 == 0) first.Wait(comm, one);
    ASSERT_NO_FATAL_FAILURE(second.Start(comm, &other));
    if (round % 2 == 1) first.Wait(comm, one);
    second.Wait(comm, other);
  }
}

TEST_P(RepeatedPartsTest, ResultsAreRightInAnyFormAndWithOtherPartsThanBefore) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    for (const CollectiveKind kind : kKinds) {
      for (unsigned seed = 0; seed < 8; ++seed) {
        // Small ones, and such that some ranks have a large part and others do not.
        for (const PartsJob& job : {JobOf(kind, seed, {0, 1, 2, 300}), JobOf(kind, seed, {0, 5, 4000, 9000})}) {
          SCOPED_TRACE(testing::Message() << KindName(kind) << ", seed " << seed);
          ASSERT_NO_FATAL_FAILURE(RunRounds(comm, job, rank));
        }
      }
    }
  });
}

// What the engine repeats goes in one hop by the short path, since nothing else can be repeated.
TEST_P(RepeatedPartsTest, SmallOnesAreRepeatsWhileTheirPartsStayAndOthersAreNot) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    auto* const communicator = reinterpret_cast<Communicator*>(comm);
    const auto repeats = [&](CollectiveKind kind, std::vector<size_t> counts, bool has_gap) {
      counts.resize(static_cast<size_t>(nranks()), counts.front());
      std::vector<size_t> offsets(counts.size());
      size_t all = 0;
      for (size_t r = 0; r < counts.size(); ++r) {
        offsets[r] = all;
        all += counts[r] + (has_gap ? 1 : 0);
      }
      const std::vector<float> in(all, 1);
      std::vector<float> out(all);
      CallArguments call;
      call.kind = kind;
      call.sendbuf = in.data();
      call.recvbuf = out.data();
      call.send_layout = call.recv_layout = {counts.data(), offsets.data()};
      call.count = IsAlltoall(kind) ? 0 : counts[static_cast<size_t>(rank)];
      if (const std::optional<Code> code = communicator->RunAgain(call)) return code == Code::kOk;
      EXPECT_TRUE(communicator->Run(call).ok()) << LastMessage(comm);
      return false;
    };
    for (const CollectiveKind kind : kKinds) {
      SCOPED_TRACE(KindName(kind));
      EXPECT_FALSE(repeats(kind, {3}, false));
      EXPECT_TRUE(repeats(kind, {3}, false));
      EXPECT_TRUE(repeats(kind, {3}, false));
      const bool knows_parts =
          SendHolds(kind, rank == 0) == Holding::kParts || RecvHolds(kind, rank == 0) == Holding::kParts;
      EXPECT_EQ(repeats(kind, {3}, true), !knows_parts);
      EXPECT_FALSE(repeats(kind, {50'000}, false));
      EXPECT_FALSE(repeats(kind, {50'000}, false));
    }
  });
}

// Calls `act` with a call that repeats what was done before, and expects the verdict on the part.
void ExpectOtherPart(const ClusterConfig& config, const PartsJob& usual, const PartsJob& other) {
  Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
    ASSERT_NO_FATAL_FAILURE(RunRounds(comm, usual, rank));
    OwnCall own(rank == 1 ? other : usual, rank);
    annulus_status_t status = RunPartsCall(comm, *own.parts());
    // A rank that had all it needed learns of it in the next call.
    if (status == ANNULUS_OK) status = annulus_barrier(comm);
    EXPECT_EQ(status, ANNULUS_MISMATCH) << LastMessage(comm);
    // Where all ranks know all parts, the sums differ.
    const char* const words = IsDirect(usual.call.kind) ? " elements, for which " : " with counts for ";
    EXPECT_NE(LastMessage(comm).find(words), std::string::npos) << LastMessage(comm);
  });
}

TEST_P(RepeatedPartsTest, APartThatDiffersOnOneRankIsNamed) {
  for (const CollectiveKind kind : kKinds) {
    for (const size_t size : {6, 50'000}) {  // The second goes another way.
      SCOPED_TRACE(testing::Message() << KindName(kind) << ", " << size);
      PartsJob usual{{}, {}, false, nranks()};
      usual.call.kind = kind;
      usual.counts = MakeCounts(kind, nranks(), 0, 0, std::vector<size_t>{5});
      PartsJob other = usual;
      other.counts = MakeCounts(kind, nranks(), 0, 0, std::vector<size_t>{size});
      ExpectOtherPart(config(), usual, other);
    }
  }
}

TEST_P(RepeatedPartsTest, WrongArraysAreRefusedAndTheCommunicatorStaysUsable) {
  Cluster(config()).Run([&](annulus_comm_t* comm, int rank) {
    for (const CollectiveKind kind : kKinds) {
      PartsJob job{{}, {}, false, nranks()};
      job.call.kind = kind;
      job.counts = MakeCounts(kind, nranks(), 0, 0, std::vector<size_t>{5});
      ASSERT_NO_FATAL_FAILURE(RunRounds(comm, job, rank));
      OwnCall own(job, rank);
      const bool many_sent = SendHolds(kind, rank == 0) == Holding::kParts;
      const bool many_received = RecvHolds(kind, rank == 0) == Holding::kParts;
      const std::vector<size_t> overlapping(static_cast<size_t>(nranks()), 1);
      const auto expect_refused = [&](const PartsCall& wrong, const char* why) {
        EXPECT_EQ(RunPartsCall(comm, wrong), ANNULUS_INVALID_ARGUMENT) << KindName(kind) << ", " << why;
        EXPECT_NE(LastMessage(comm).find(why), std::string::npos) << LastMessage(comm);
      };
      for (const bool sends : {true, false}) {
        if (!(sends ? many_sent : many_received)) continue;
        PartsCall wrong = *own.parts();
        (sends ? wrong.send_counts : wrong.recv_counts) = nullptr;
        expect_refused(wrong, "counts is null");
        wrong = *own.parts();
        (sends ? wrong.send_offsets : wrong.recv_offsets) = overlapping.data();
        expect_refused(wrong, "overlap");
      }
      if (many_sent != many_received) {
        PartsCall wrong = *own.parts();
        wrong.call.count = 6;
        expect_refused(wrong, "for the same part, is 6");
      }
      ASSERT_NO_FATAL_FAILURE(RunRounds(comm, job, rank));
    }
  });
}

// Of three ranks, two exchange a large part, so they take another way than the third, to which they send a small one.
// All lies in registered memory, which is read in place where both ends can.
TEST_P(RepeatedPartsTest, RanksThatGoDifferentWaysMeetInRegisteredMemoryToo) {
  if (nranks() < 3) GTEST_SKIP() << "two ranks have the same parts";
  constexpr size_t kSmall = 12'000, kLarge = 200'000;
  const size_t n = static_cast<size_t>(nranks());
  ClusterConfig sliced = config();
  sliced.slice_bytes = GetParam().slice_bytes;
  Cluster(sliced).Run([&](annulus_comm_t* comm, int rank) {
    const auto bytes_between = [](size_t a, size_t b) { return a != b && a < 2 && b < 2 ? kLarge : kSmall; };
    std::vector<size_t> counts;
    size_t all = 0;
    for (size_t peer = 0; peer < n; ++peer) {
      counts.push_back(bytes_between(static_cast<size_t>(rank), peer));
      all += counts.back();
    }
    void* memory = nullptr;
    ASSERT_EQ(annulus_mem_alloc(2 * all, &memory), ANNULUS_OK);
    auto* const in = static_cast<unsigned char*>(memory);
    unsigned char* const out = in + all;
    for (int round = 0; round < 20; ++round) {
      for (size_t peer = 0, at = 0; peer < n; at += counts[peer], ++peer)
        std::memset(in + at, static_cast<int>(static_cast<size_t>(rank) * n + peer) + round, counts[peer]);
      ASSERT_EQ(annulus_alltoallv(comm, in, counts.data(), nullptr, out, counts.data(), nullptr, ANNULUS_UINT8),
                ANNULUS_OK)
          << LastMessage(comm);
      for (size_t peer = 0, at = 0; peer < n; at += counts[peer], ++peer) {
        const auto value =
            static_cast<unsigned char>(peer * n + static_cast<size_t>(rank) + static_cast<size_t>(round));
        EXPECT_EQ(std::count(out + at, out + at + counts[peer], value), static_cast<ptrdiff_t>(counts[peer]))
            << "from rank " << peer << " to " << rank;
      }
    }
    ASSERT_EQ(annulus_mem_free(memory), ANNULUS_OK);
  });
}

INSTANTIATE_TEST_SUITE_P(Variants, RepeatedPartsTest,
                         testing::Values(Variant{"shm", 2}, Variant{"shm", 3}, Variant{"tcp", 2}, Variant{"tcp", 3},
                                         Variant{"shm", 5, 4096}),
                         [](const auto& info) {
                           return std::string(info.param.transport) + std::to_string(info.param.nranks);
                         });

}  // namespace
}  // namespace annulus
