// Near peers lend no memory; far ones do where it is faster. What is found far by mistake is found near again.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/transport/shm/shm_pair.h"
#include "transport/transport.h"

namespace annulus {
namespace {

constexpr uint32_t kBytes = 32 * 1024;
constexpr int kExchanges = 1000;

class ShmNearTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(pair_.Make({.slot_bytes = kBytes, .slots = 4})); }

  // Takes the page with the returned words out of the page table, not out of memory: the next load of one takes longer
  // than from any other processor.
  void MakeTheNextLoadSlow() {
    const size_t page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t word = reinterpret_cast<uintptr_t>(pair_.mapping().direction(0).returns);
    ASSERT_EQ(madvise(reinterpret_cast<void*>(word / page_bytes * page_bytes), page_bytes, MADV_DONTNEED), 0);
  }

  // Sends a message from rank 0 to rank 1 as the pipeline does. Returns whether its memory was lent. `lands`: the
  // receive names memory where it is to go.
  bool Exchange(bool lands = true) {
    for (std::byte& each : memory_) each = static_cast<std::byte>(++value_);
    Endpoint& from = pair_.end(0);
    Send send;
    send.data = memory_.data();
    send.bytes = send.ready = kBytes;
    const bool lends = from.shortcuts().in_place->Lends(memory_.data(), kBytes);
    if (!lends) {
      std::byte* slot = nullptr;
      EXPECT_TRUE(from.AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
      if (slot == nullptr) return false;
      std::ranges::copy(memory_, slot);
      send.data = slot;
    }
    Recv recv;
    recv.capacity = kBytes;
    if (lands) recv.landing = landing_.data();
    EXPECT_TRUE(pair_.end(1).PostRecv(&recv).ok());
    EXPECT_TRUE(from.PostSend(&send).ok());
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while ((send.code == Code::kInProgress || recv.code == Code::kInProgress) && Now() < deadline) {
      bool moved = false;
      for (const int side : {1, 0}) EXPECT_TRUE(pair_.end(side).Progress(&moved).ok());
    }
    EXPECT_TRUE(send.code == Code::kOk && recv.code == Code::kOk);
    if (recv.code != Code::kOk) return lends;
    EXPECT_TRUE(std::equal(memory_.begin(), memory_.end(), recv.data));
    if (recv.data != recv.landing) pair_.end(1).Release(&recv);
    return lends;
  }

  ShmPair pair_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> landing_ = std::vector<std::byte>(kBytes);
  uint32_t value_ = 0;
};

TEST_F(ShmNearTest, OneNoisyBatchDoesNotMakeALenderForGood) {
  // Both ends are on one processor, so it is as near as can be.
  constexpr int kEnough = 2000;
  int exchanges = 0;
  while (exchanges < kEnough && Exchange() && !HasFailure()) ++exchanges;
  ASSERT_FALSE(HasFailure());
  if (exchanges == kEnough) GTEST_SKIP() << "reading the clock takes too long here to find any peer near";
  const Deadline deadline = DeadlineAfter(kContractPatience);
  for (bool lends = false; !lends; lends = Exchange()) {
    ASSERT_LT(Now(), deadline) << "the loads are not slow";
    ASSERT_NO_FATAL_FAILURE(MakeTheNextLoadSlow());
    ASSERT_FALSE(HasFailure());
  }
  while (Exchange()) {
    ASSERT_LT(Now(), deadline) << "it lends for good";
    ASSERT_FALSE(HasFailure());
  }
}

// Also while it would like to time slots, of which it fills few.
TEST_F(ShmNearTest, AFarPeerIsLentToWhileThatIsFaster) {
  ShmEnd* const peer = pair_.mapping().end(1);
  int loans = 0;
  for (int exchange = 0; exchange < 3 * kExchanges; ++exchange) {
    ASSERT_NO_FATAL_FAILURE(MakeTheNextLoadSlow());
    // What the peer has measured it tells only when that changes much; it is told otherwise here.
    const bool are_fast = exchange >= kExchanges && exchange < 2 * kExchanges;
    peer->slot_pace = are_fast ? 1 : UINT32_MAX;
    peer->loan_pace = are_fast ? UINT32_MAX : 1;
    loans += Exchange() ? 1 : 0;
    ASSERT_FALSE(HasFailure());
    if ((exchange + 1) % kExchanges != 0) continue;
    if (are_fast) {
      EXPECT_LT(loans, kExchanges / 10);
    } else {
      EXPECT_GT(loans, kExchanges * 9 / 10);
    }
    loans = 0;
  }
}

// Both ends say how long they took.
TEST_F(ShmNearTest, ReadersTellTheirPaces) {
  const ShmEnd* const peer = pair_.mapping().end(1);
  const Deadline deadline = DeadlineAfter(kContractPatience);
  while (peer->slot_pace == 0 || peer->loan_pace == 0) {
    ASSERT_NO_FATAL_FAILURE(MakeTheNextLoadSlow());
    ASSERT_LT(Now(), deadline);
    Exchange();
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_EQ(pair_.mapping().end(0)->loan_pace, 0u) << "it has read nothing";
}

// What is reduced out of a slot takes longer than a copy.
TEST_F(ShmNearTest, OnlySlotsThatAreCopiedAreTimed) {
  for (int exchange = 0; exchange < kExchanges; ++exchange) {
    ASSERT_NO_FATAL_FAILURE(MakeTheNextLoadSlow());
    Exchange(false);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(pair_.mapping().end(1)->loan_pace, 0u);
  EXPECT_EQ(pair_.mapping().end(1)->slot_pace, 0u);
}

}  // namespace
}  // namespace annulus
