// Verbs links whose slices are read from registered memory of the sender: what goes where without a copy, and what
// waits for whom.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/transport/contract/contract_link.h"
#include "tests/transport/verbs/registered_link.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/transport.h"

namespace annulus {
namespace {

class VerbsReadsTest : public ReadLinkTest {
 protected:
  // Sends one slice and says how many bytes were read, and how many of them straight into registered memory.
  void SendOne(const std::byte* data, uint32_t bytes, std::byte* landing, uint64_t read, uint64_t landed) {
    const SimulatedCounts before = SimulatedVerbs::Counts();
    Recv* const recv = Expect(landing);
    const Send* const send = Post(data, bytes);
    ASSERT_TRUE(Drive([&] { return recv->code == Code::kOk && send->code == Code::kOk; }));
    EXPECT_EQ(std::memcmp(recv->data, data, bytes), 0);
    EXPECT_EQ(recv->data == landing, landed > 0);
    if (recv->data != landing) end(1).Release(recv);
    const SimulatedCounts after = SimulatedVerbs::Counts();
    EXPECT_EQ(after.read_bytes - before.read_bytes, read);
    EXPECT_EQ(after.read_landed - before.read_landed, landed);
    EXPECT_EQ(after.written_bytes - before.written_bytes >= bytes, read == 0);
  }
};

TEST_F(VerbsReadsTest, SlicesGoFromRegisteredMemoryToRegisteredMemory) {
  EXPECT_TRUE(MayLand(&end(1), MemoryKind::kHost, to(), kSlotBytes));
  for (int i = 0; i < 3 * kSlots; ++i) {
    SendOne(from() + i, kSlotBytes, to() + 3, kSlotBytes, kSlotBytes);
    EXPECT_EQ(std::memcmp(to() + 3, from() + i, kSlotBytes), 0);
  }
  SendOne(from(), kLeast, to(), kLeast, kLeast);
}

TEST_F(VerbsReadsTest, WithoutALandingTheSliceIsReadIntoItsSlot) {
  std::vector<std::byte> ordinary(kSlotBytes);
  EXPECT_FALSE(MayLand(&end(1), MemoryKind::kHost, ordinary.data(), kSlotBytes));
  for (int i = 0; i < 2 * kSlots; ++i) {
    SendOne(from() + i, kSlotBytes, nullptr, kSlotBytes, 0);
    SendOne(from() + i, kSlotBytes, ordinary.data(), kSlotBytes, 0);
  }
  EXPECT_TRUE(IsAll(ordinary.data(), kSlotBytes, std::byte{0}));
}

TEST_F(VerbsReadsTest, SmallSlicesAndThoseInSlotsAreWritten) {
  EXPECT_FALSE(MayLand(&end(1), MemoryKind::kHost, to(), kLeast - 1));
  SendOne(from(), kLeast - 1, to(), 0, 0);
  std::byte* slot = nullptr;
  ASSERT_TRUE(end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  std::memset(slot, 0x5a, kSlotBytes);
  SendOne(slot, kSlotBytes, to(), 0, 0);
}

TEST_F(VerbsReadsTest, BothEndsAndTheirDevicesMustWantIt) {
  for (const auto& [first, second] : {std::pair{int64_t{0}, kLeast}, {kLeast, int64_t{0}}, {int64_t{0}, int64_t{0}}}) {
    Open(first, second);
    SendOne(from(), kSlotBytes, to(), 0, 0);
    EXPECT_FALSE(MayLand(&end(1), MemoryKind::kHost, to(), kSlotBytes));
  }
  SimulatedVerbs::SetMachine({.most_reads = 0});
  Open();
  SendOne(from(), kSlotBytes, to(), 0, 0);
}

TEST_F(VerbsReadsTest, ASliceThatBecomesReadyBitByBitWaitsUntilAllOfItIs) {
  Recv* const recv = Expect(to());
  Send* const send = Post(from(), 3000, 2000);
  DriveUntilQuiet();
  EXPECT_FALSE(recv->started);
  send->ready = 3000;
  ASSERT_TRUE(Drive([&] { return recv->code == Code::kOk && send->code == Code::kOk; }));
  EXPECT_EQ(recv->data, to());
  EXPECT_EQ(std::memcmp(to(), from(), 3000), 0);
}

// The receiver decides when it is read, so until then the memory is lent.
TEST_F(VerbsReadsTest, ASendCompletesOnceThePeerHasTakenTheSlice) {
  const Send* const send = Post(from(), kSlotBytes);
  DriveUntilQuiet();
  EXPECT_EQ(send->code, Code::kInProgress);
  EXPECT_TRUE(end(0).Arm() && end(1).Arm()) << "nobody spins meanwhile";
  const Recv* const recv = Expect(to());
  EXPECT_FALSE(end(1).Arm()) << "a READ can begin";
  ASSERT_TRUE(Drive([&] { return send->code == Code::kOk; }));
  EXPECT_EQ(recv->code, Code::kOk);
}

TEST_F(VerbsReadsTest, ASliceThatIsTooLargeTouchesNothing) {
  std::memset(to(), 0x33, kBytes);
  Expect(to() + kSlotBytes);
  Recv* const small = Expect(to(), 2000);
  Post(from(), 3000);
  const Send* const large = Post(from(), 2001);
  ASSERT_FALSE(Drive([&] { return small->code != Code::kInProgress; }) && small->code == Code::kOk);
  EXPECT_EQ(recvs_[0].code, Code::kOk);
  EXPECT_EQ(small->code, Code::kProtocol);
  EXPECT_EQ(small->bytes, 2001u);
  EXPECT_NE(large->code, Code::kOk);
  EXPECT_TRUE(IsAll(to(), 2001, std::byte{0x33}));
}

TEST_F(VerbsReadsTest, MoreReadsThanDevicesTakeWait) {
  for (const int most : {1, 3, 16}) {
    SimulatedVerbs::SetMachine({.most_reads = most});
    Open();
    sends_.clear();
    recvs_.clear();
    for (size_t i = 0; i < kSlots; ++i) Expect(to() + i * kSlotBytes);
    for (size_t i = 0; i < kSlots; ++i) Post(from() + i * kSlotBytes, kSlotBytes);
    ASSERT_TRUE(Drive([&] { return sends_.back().code == Code::kOk; }));
    EXPECT_EQ(std::memcmp(to(), from(), kSlots * kSlotBytes), 0);
  }
}

TEST_F(VerbsReadsTest, EveryRailReads) {
  SimulatedVerbs::SetMachine({.devices = 2});
  Open(kLeast, kLeast, "sim0,sim1");
  const SimulatedCounts before = SimulatedVerbs::Counts();
  for (int round = 0; round < 20; ++round) {
    sends_.clear();
    recvs_.clear();
    for (size_t i = 0; i < kSlots; ++i) Expect(to() + i * kSlotBytes);
    for (size_t i = 0; i < kSlots; ++i) Post(from() + i * kSlotBytes, kSlotBytes);
    ASSERT_TRUE(Drive([&] { return sends_.back().code == Code::kOk; }));
    ASSERT_EQ(std::memcmp(to(), from(), kSlots * kSlotBytes), 0);
    std::memset(to(), 0, kBytes);
  }
  const SimulatedCounts after = SimulatedVerbs::Counts();
  EXPECT_EQ(after.read_landed - before.read_landed, 20 * kSlots * kSlotBytes);
  for (const size_t device : {0, 1}) {
    EXPECT_GT(after.device_bytes[device] - before.device_bytes[device], 20 * kSlotBytes) << device;
  }
}

}  // namespace
}  // namespace annulus
