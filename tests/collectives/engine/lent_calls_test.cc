// Collectives whose slices are only copied lend them over shared memory (decision 112): they are right, and end whether
// the peer comes in time or not.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/algorithms/table.h"
#include "collectives/core/links.h"
#include "collectives/engine/engine.h"
#include "collectives/observe/monitor.h"
#include "tests/transport/shm/shm_pair.h"

namespace annulus {
namespace {

constexpr size_t kPartBytes = 256 * 1024;
constexpr char kMayNotRead[] = "processes may not read each other here";

// Two engines in one thread.
class LentCallsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const NeededLink& each : LinksNeeded(0, {plan_, Topology(2)})) {
      pairs_.push_back(std::make_unique<ShmPair>());
      // Near peers would not lend.
      ASSERT_TRUE(pairs_.back()->Make({.slot_bytes = SlotBytes(plan_), .slots = plan_.slots}, SlotStores::kPlain));
      for (Rank& rank : ranks_) rank.links.Add(1 - rank.number, each.channel, pairs_.back()->Take(rank.number));
    }
    for (Rank& rank : ranks_) {
      rank.engine = std::make_unique<Engine>(rank.number, plan_, Topology(2), &rank.links, &rank.monitor);
      rank.in.resize(2 * kPartBytes);
      rank.out.resize(2 * kPartBytes);
      for (size_t i = 0; i < rank.in.size(); ++i) rank.in[i] = Byte(rank.number, i);
    }
  }
  void TearDown() override {
    for (Rank& rank : ranks_) rank.links.Close();
  }

  struct Rank {
    explicit Rank(int own_number) : number(own_number) {}

    const int number;
    Links links{2, 2};
    Monitor monitor{2};
    std::unique_ptr<Engine> engine;
    std::vector<std::byte> in;
    std::vector<std::byte> out;

    void Start(CollectiveKind kind, size_t count, uint64_t sequence) {
      Call call;
      call.sequence = sequence;
      call.kind = kind;
      call.type = DataType::kInt8;
      call.count = count;
      Buffers buffers;
      buffers.input = ConstBuffer(in.data());
      buffers.output = Buffer(out.data());
      engine->Start(call, buffers);
    }
    void Drive() {
      bool moved = false;
      const Status status = engine->Progress(&moved);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    // Returns whether it has ended.
    bool DriveToEnd() {
      const Deadline deadline = DeadlineAfter(kContractPatience);
      while (!engine->done() && Now() < deadline && !testing::Test::HasFatalFailure()) Drive();
      return engine->done();
    }
  };

  static std::byte Byte(int rank, size_t at) {
    return static_cast<std::byte>((at * 7 + at / 4096 + 31 * static_cast<size_t>(rank)) % 251);
  }
  // Both ranks make the call, in turn.
  void Run(CollectiveKind kind, size_t count) {
    ++sequence_;
    for (Rank& rank : ranks_) rank.Start(kind, count, sequence_);
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while (!(ranks_[0].engine->done() && ranks_[1].engine->done()) && Now() < deadline) {
      for (Rank& rank : ranks_) {
        if (rank.engine->done()) continue;
        ASSERT_NO_FATAL_FAILURE(rank.Drive());
      }
    }
    ASSERT_TRUE(ranks_[0].engine->done() && ranks_[1].engine->done());
  }
  // Slots whose latest slice was lent and read by the peer, or was copied because that came late.
  int CountClaims(ShmClaimState state) {
    int count = 0;
    for (const auto& pair : pairs_) {
      for (const int side : {0, 1}) {
        const ShmDirection direction = pair->mapping().direction(side);
        for (uint32_t slot = 0; slot < direction.num_slots; ++slot)
          count += direction.claims[slot].state == state ? 1 : 0;
      }
    }
    return count;
  }
  bool MayLend() { return ranks_[0].links.At(1, 0)->shortcuts().in_place->MayLend(); }

  const PlanSettings plan_ = PlanSettings();
  std::vector<std::unique_ptr<ShmPair>> pairs_;
  Rank ranks_[2] = {Rank(0), Rank(1)};
  uint64_t sequence_ = 0;
};

TEST_F(LentCallsTest, WhatIsOnlyCopiedIsLent) {
  if (!MayLend()) GTEST_SKIP() << kMayNotRead;
  Run(CollectiveKind::kBroadcast, 2 * kPartBytes);
  EXPECT_TRUE(ranks_[1].out == ranks_[0].in);
  EXPECT_GT(CountClaims(ShmClaimState::kRead), 0);
  Run(CollectiveKind::kAllgather, kPartBytes);
  for (const Rank& rank : ranks_) {
    for (const int part : {0, 1}) {
      const auto begin = rank.out.begin() + static_cast<ptrdiff_t>(kPartBytes) * part;
      EXPECT_TRUE(std::equal(begin, begin + kPartBytes, ranks_[part].in.begin())) << rank.number << ' ' << part;
    }
  }
  Run(CollectiveKind::kAlltoall, kPartBytes);
  for (const Rank& rank : ranks_) {
    for (const int part : {0, 1}) {
      const auto begin = rank.out.begin() + static_cast<ptrdiff_t>(kPartBytes) * part;
      const auto from = ranks_[part].in.begin() + static_cast<ptrdiff_t>(kPartBytes) * rank.number;
      EXPECT_TRUE(std::equal(begin, begin + kPartBytes, from)) << rank.number << ' ' << part;
    }
  }
}

TEST_F(LentCallsTest, WhatIsReducedIsNot) {
  Run(CollectiveKind::kAllreduce, 2 * kPartBytes);
  Run(CollectiveKind::kReduceScatter, kPartBytes);
  EXPECT_EQ(CountClaims(ShmClaimState::kRead) + CountClaims(ShmClaimState::kCopied), 0);
}

TEST_F(LentCallsTest, ARankThatSharesItsCoreLendsNothing) {
  for (Rank& rank : ranks_) rank.engine->ShareCore();
  Run(CollectiveKind::kBroadcast, 2 * kPartBytes);
  EXPECT_TRUE(ranks_[1].out == ranks_[0].in);
  EXPECT_EQ(CountClaims(ShmClaimState::kRead) + CountClaims(ShmClaimState::kCopied), 0);
}

TEST_F(LentCallsTest, ARootDoesNotWaitForOneThatComesLate) {
  if (!MayLend()) GTEST_SKIP() << kMayNotRead;
  ranks_[0].Start(CollectiveKind::kBroadcast, 2 * kPartBytes, 1);
  ASSERT_TRUE(ranks_[0].DriveToEnd());
  EXPECT_GT(CountClaims(ShmClaimState::kCopied), 0);
  const std::vector<std::byte> sent = ranks_[0].in;
  std::ranges::fill(ranks_[0].in, std::byte{0});  // It is the user's again.
  ranks_[1].Start(CollectiveKind::kBroadcast, 2 * kPartBytes, 1);
  ASSERT_TRUE(ranks_[1].DriveToEnd());
  EXPECT_TRUE(ranks_[1].out == sent);
}

TEST_F(LentCallsTest, WhatIsLentWhenTheLinkClosesIsNotTaken) {
  if (!MayLend()) GTEST_SKIP() << kMayNotRead;
  ranks_[0].Start(CollectiveKind::kBroadcast, 2 * kPartBytes, 1);
  ASSERT_NO_FATAL_FAILURE(ranks_[0].Drive());
  ranks_[0].links.Close();
  EXPECT_GT(CountClaims(ShmClaimState::kWithdrawn), 0);
  std::ranges::fill(ranks_[0].in, std::byte{0});
  ranks_[1].Start(CollectiveKind::kBroadcast, 2 * kPartBytes, 1);
  Status status;
  for (const Deadline deadline = DeadlineAfter(kContractPatience); status.ok() && Now() < deadline;) {
    bool moved = false;
    status = ranks_[1].engine->Progress(&moved);
    ASSERT_FALSE(ranks_[1].engine->done());
  }
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.ToString();
}

}  // namespace
}  // namespace annulus
