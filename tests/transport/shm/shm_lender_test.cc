// ShmLender: it goes on learning how far away the peer is, whatever is sent, and slots that tell are not prefetched.
#include "transport/shm/shm_lender.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "transport/shm/shm_mapping.h"
#include "transport/shm/shm_receiver.h"
#include "transport/shm/shm_regions.h"
#include "transport/shm/shm_sender.h"
#include "transport/transport.h"

namespace annulus {
namespace {

constexpr size_t kSlotBytes = 16 * 1024;
constexpr uint32_t kSlots = 4;
constexpr int kMostRounds = 4000;

class ShmLenderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(ShmMapping::Create(kSlots, kSlotBytes, &mapping_).ok());
    sender_ = std::make_unique<ShmSender>(mapping_->direction(0), &own_regions_);
    receiver_ = std::make_unique<ShmReceiver>(mapping_->direction(0), &peer_regions_, [] { return false; });
    lender_ = std::make_unique<ShmLender>(sender_.get(), SlotStores::kAuto, 0, 1);
  }

  // The next load of a returned word takes longer than from any other processor.
  void MakeTheNextLoadSlow() {
    const size_t page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t word = reinterpret_cast<uintptr_t>(mapping_->direction(0).returns);
    ASSERT_EQ(madvise(reinterpret_cast<void*>(word / page_bytes * page_bytes), page_bytes, MADV_DONTNEED), 0);
  }

  // Sends some slices, which come back together.
  void Pass(size_t slices, uint32_t bytes) {
    std::vector<Recv> recvs(slices);
    for (Recv& recv : recvs) {
      std::byte* const slot = lender_->Lend(bytes, &fault_);
      ASSERT_NE(slot, nullptr);
      lender_->Fill(slot, data_.data(), bytes);
      lender_->Posted(bytes);
      sender_->PublishLent(Tag(), slot, bytes);
      sender_->ExpectMore(bytes, lender_->placing());
      recv.capacity = kSlotBytes;
      ASSERT_TRUE(receiver_->Post(&recv));
    }
    bool freed = false;
    ASSERT_TRUE(receiver_->Advance(&freed, &fault_)) << fault_.field;
    for (Recv& recv : recvs) receiver_->Release(&recv);
  }
  // Until slices are put where those for a near peer are, or not.
  bool PassUntil(ShmPlacing placing, uint32_t bytes, bool slowly) {
    for (int round = 0; round < kMostRounds; ++round) {
      if (lender_->placing() == placing) return true;
      if (slowly) MakeTheNextLoadSlow();
      Pass(2, bytes);
      if (HasFatalFailure()) return false;
    }
    return false;
  }

  std::unique_ptr<ShmMapping> mapping_;
  ShmOwnRegions own_regions_{nullptr, [](const ShmNotice&, int) { return true; }};
  ShmPeerRegions peer_regions_;
  std::unique_ptr<ShmSender> sender_;
  std::unique_ptr<ShmReceiver> receiver_;
  std::unique_ptr<ShmLender> lender_;
  std::array<std::byte, kSlotBytes> data_{};
  ShmFault fault_;
};

// The first slice of two finds both slots, so the second one finds nothing to time.
TEST_F(ShmLenderTest, AMoveIsNoticedWhateverTheRhythmOfSlices) {
  if (!PassUntil(ShmPlacing::kInTurn, 8192, false) && !HasFailure())
    GTEST_SKIP() << "reading the clock takes too long here to find any peer near";
  for (int move = 0; move < 4 && !HasFailure(); ++move) {
    Pass(1, 8192);  // From now on, every second slice is another one than before.
    EXPECT_TRUE(PassUntil(ShmPlacing::kAtBeginning, 8192, true)) << "still thought near";
    EXPECT_TRUE(PassUntil(ShmPlacing::kInTurn, 8192, false)) << "still thought far";
  }
}

// They are too small for the question how long rewriting a slot takes, which far peers raise.
TEST_F(ShmLenderTest, SlicesThatAreTooSmallToBeTimedDoNotEndTheLooks) {
  constexpr uint32_t kBytes = ShmDistance::kRewriteBytes - 1000;
  if (!PassUntil(ShmPlacing::kInTurn, kBytes, false) && !HasFailure())
    GTEST_SKIP() << "reading the clock takes too long here to find any peer near";
  EXPECT_TRUE(PassUntil(ShmPlacing::kAtBeginning, kBytes, true));
  for (int round = 0; round < 1000 && !HasFailure(); ++round) {
    MakeTheNextLoadSlow();
    Pass(2, kBytes);
  }
  EXPECT_TRUE(PassUntil(ShmPlacing::kInTurn, kBytes, false)) << "far for good";
}

TEST_F(ShmLenderTest, SparedSlotsAreNotPrefetched) {
  constexpr uint32_t kBytes = 4096;
  lender_ = std::make_unique<ShmLender>(sender_.get(), SlotStores::kPlain, 0, 1);  // Always at the beginning.
  for (const bool spares : {false, true}) {
    sender_->Spare(spares ? kBytes : SIZE_MAX);
    for (uint32_t pass = 0; pass < kSlots; pass += 2) Pass(2, kBytes);
    sender_->CollectReturns(&fault_);
    sender_->PrepareNext();
    int timed = 0;
    std::array<std::byte*, 2> slots{};
    for (std::byte*& slot : slots) {
      slot = sender_->Acquire(kBytes, ShmPlacing::kAtBeginning, &fault_);
      ASSERT_NE(slot, nullptr);
      timed += sender_->TimeRewrite(slot, kBytes) != 0 ? 1 : 0;
    }
    EXPECT_EQ(timed, spares ? 2 : 1);
    for (std::byte* const slot : slots) {
      Recv recv;
      recv.capacity = kSlotBytes;
      sender_->PublishLent(Tag(), slot, kBytes);
      ASSERT_TRUE(receiver_->Post(&recv));
      bool freed = false;
      ASSERT_TRUE(receiver_->Advance(&freed, &fault_));
      receiver_->Release(&recv);
    }
  }
}

// Slots lie a power of two apart, and a cache has few places for lines that do.
TEST_F(ShmLenderTest, SmallSlicesOfDifferentSlotsLieInDifferentPlaces) {
  std::set<size_t> places;
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    const std::byte* const lent = lender_->Lend(ShmSender::kLeastInTurn - 1, &fault_);
    ASSERT_NE(lent, nullptr);
    places.insert(static_cast<size_t>(lent - mapping_->direction(0).slots) % mapping_->direction(0).slot_stride);
  }
  EXPECT_EQ(places.size(), kSlots);
}

}  // namespace
}  // namespace annulus
