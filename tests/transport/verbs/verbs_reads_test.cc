// Verbs links whose slices are read from registered memory of the sender: what goes where without a copy, what waits
// for whom, and that no device touches a landing or lent memory once its owner has it back.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/soak/rounds.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/memory/memory.h"
#include "transport/transport.h"
#include "transport/verbs/verbs.h"

namespace annulus {
namespace {

constexpr int kSlots = 4;
constexpr size_t kSlotBytes = 4096;
constexpr size_t kBytes = 16 * kSlotBytes;
constexpr int64_t kLeast = 1000;

std::unique_ptr<ContractLink> OpenLink(int64_t read_bytes_of_0, int64_t read_bytes_of_1, const char* ports = "") {
  const auto make = [=](TransportConfig config) {
    config.settings.Set("verbs_read_bytes", config.rank == 0 ? read_bytes_of_0 : read_bytes_of_1);
    config.settings.Set("verbs_device", std::string(ports));
    return CreateVerbsTransportOver(SimulatedVerbs::Api(), "", config);
  };
  return TransportLink::Open(make, nullptr, {.slot_bytes = kSlotBytes, .slots = kSlots});
}

bool IsAll(const std::byte* data, size_t bytes, std::byte value) {
  return std::all_of(data, data + bytes, [value](std::byte each) { return each == value; });
}

// Rank 0 sends and rank 1 receives. Each has memory of its own.
class VerbsReadsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SimulatedVerbs::SetMachine({});
    for (std::byte*& each : memory_) {
      void* memory = nullptr;
      ASSERT_TRUE(TestRegistry().Allocate(kBytes, &memory).ok());
      each = static_cast<std::byte*>(memory);
    }
    for (size_t i = 0; i < kBytes; ++i) from()[i] = static_cast<std::byte>(i * 7 + 1);
    Open();
  }
  void TearDown() override {
    SimulatedVerbs::FailAfter(UINT64_MAX, IBV_WC_SUCCESS);
    link_.reset();
    for (std::byte* const each : memory_) EXPECT_TRUE(TestRegistry().Free(each).ok());
    SimulatedVerbs::SetMachine({});
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_EQ(counts.refused_posts, 0u);
    EXPECT_EQ(counts.read_stalls, 0u);
    EXPECT_EQ(counts.busy, 0u) << "something was destroyed before what uses it";
    EXPECT_EQ(counts.objects, 0u) << "something was not given back to the provider";
  }

  void Open(int64_t read_bytes_of_0 = kLeast, int64_t read_bytes_of_1 = kLeast, const char* ports = "") {
    link_.reset();
    link_ = OpenLink(read_bytes_of_0, read_bytes_of_1, ports);
    ASSERT_NE(link_, nullptr);
  }
  Endpoint& end(int side) { return link_->end(side); }
  std::byte* from() { return memory_[0]; }
  std::byte* to() { return memory_[1]; }

  Send* Post(const std::byte* data, uint32_t bytes) {
    Send* const send = &sends_.emplace_back();
    send->data = data;
    send->bytes = send->ready = bytes;
    const Status status = end(0).PostSend(send);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return send;
  }
  Recv* Expect(std::byte* landing, uint32_t capacity = kSlotBytes) {
    Recv* const recv = &recvs_.emplace_back();
    recv->landing = landing;
    recv->capacity = capacity;
    const Status status = end(1).PostRecv(recv);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return recv;
  }
  template <class Done>
  bool Drive(const Done& done) {
    for (const Deadline deadline = DeadlineAfter(kContractPatience); !done();) {
      if (Now() > deadline) return false;
      bool moved = false;
      for (const int side : {0, 1}) {
        if (!end(side).Progress(&moved).ok()) return false;
      }
      if (!moved) link_->Pass();
    }
    return true;
  }
  // Lets both ends do all that they can without more requests.
  void DriveUntilQuiet() {
    for (int quiet = 0; quiet < 100; ++quiet) {
      bool moved = false;
      for (const int side : {0, 1}) ASSERT_TRUE(end(side).Progress(&moved).ok());
      if (moved || SimulatedVerbs::Counts().waiting > 0) quiet = 0;
      link_->Pass();
    }
  }
  static void AwaitIdleDevice() {
    while (SimulatedVerbs::Counts().waiting > 0) sched_yield();
  }
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

  void Forget() {
    sends_.clear();
    recvs_.clear();
    for (auto& sends : sends_of_) sends.clear();
  }
  // Sends small slices, which nobody receives. As long as the device has not acknowledged them, an end that closes
  // lingers.
  void PostSmall(int side) {
    for (int i = 0; i < 2; ++i) {
      Send* const send = &sends_of_[static_cast<size_t>(side)].emplace_back();
      std::byte* slot = nullptr;
      ASSERT_TRUE(end(side).AcquireSlot(&slot).ok());
      send->data = slot;
      send->bytes = send->ready = 8;
      std::memset(slot, 0, 8);
      ASSERT_TRUE(end(side).PostSend(send).ok());
    }
  }

  std::array<std::deque<Send>, 2> sends_of_;  // By side, those of PostSmall.
  std::deque<Send> sends_;
  std::deque<Recv> recvs_;
  std::unique_ptr<ContractLink> link_;
  std::array<std::byte*, 2> memory_{};
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
  ASSERT_TRUE(end(0).AcquireSlot(&slot).ok());
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
  Send* const send = &sends_.emplace_back();
  send->data = from();
  send->bytes = 3000;
  send->ready = 2000;
  ASSERT_TRUE(end(0).PostSend(send).ok());
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

TEST_F(VerbsReadsTest, APeerThatTakesASliceAndLeavesHasTakenIt) {
  const Recv* const recv = Expect(to());
  const Send* const send = Post(from(), kSlotBytes);
  bool moved = false;
  ASSERT_TRUE(end(0).Progress(&moved).ok());
  // Only rank 1 works.
  const Deadline deadline = DeadlineAfter(kContractPatience);
  while (recv->code != Code::kOk && Now() < deadline) ASSERT_TRUE(end(1).Progress(&moved).ok());
  CloseWholly(end(1));
  Status status;
  while (status.ok() && Now() < deadline) status = end(0).Progress(&moved);
  EXPECT_EQ(send->code, Code::kOk);
  EXPECT_EQ(status.code(), Code::kPeerLost);
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

TEST_F(VerbsReadsTest, ARefusedReadEndsTheLinkAndNamesThePeer) {
  Expect(to());
  Post(from(), kSlotBytes);
  // The message itself is carried out, and then the READ is refused.
  SimulatedVerbs::FailAfter(1, IBV_WC_REM_ACCESS_ERR);
  Status status;
  for (const Deadline deadline = DeadlineAfter(kContractPatience); status.ok() && Now() < deadline;) {
    bool moved = false;
    (void)end(0).Progress(&moved);
    status = end(1).Progress(&moved);
  }
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.peer(), 0);
  EXPECT_NE(status.message().find("refused access to its memory"), std::string::npos) << status.ToString();
}

// Whoever gets a request back changes the memory: a receiver its landing, a sender what it has lent. Nothing is written
// to the landing afterwards, and no receive completes with what the sender wrote later.
TEST_F(VerbsReadsTest, MemoryThatIsGivenBackIsTouchedByNobody) {
  for (uint64_t seed = 1; seed <= Rounds(300, 20'000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimulatedVerbs::Seed(seed);
    std::mt19937_64 random(seed);
    const int rails = 1 + static_cast<int>(seed / 6 % 2);
    SimulatedVerbs::SetMachine({.devices = rails, .most_reads = 1 + static_cast<int>(seed % 4)});
    Open(kLeast, kLeast, rails == 2 ? "sim0,sim1" : "");
    Forget();
    std::memset(from(), 0x5a, kBytes);
    std::memset(to(), 0x11, kBytes);
    // Some have no landing.
    for (size_t i = 0; i < kSlots; ++i) Expect(random() % 4 == 0 ? nullptr : to() + i * kSlotBytes);
    for (size_t i = 0; i < kSlots; ++i) Post(from() + i * kSlotBytes, kSlotBytes);
    for (const int side : {0, 1}) PostSmall(side);
    for (uint64_t i = random() % 40; i > 0; --i) {
      bool moved = false;
      ASSERT_TRUE(end(static_cast<int>(random() % 2)).Progress(&moved).ok());
      if (random() % 2 == 0) sched_yield();
    }
    // An end gives up, both do one after the other, or a device fails.
    const uint64_t way = random() % 4;
    std::array<bool, 2> closed{};
    if (way == 0) closed[0] = end(0).Close();
    if (way == 1) closed[1] = end(1).Close();
    if (way == 2) SimulatedVerbs::FailPairs();
    if (way == 3) SimulatedVerbs::FailAfter(random() % 3, IBV_WC_RETRY_EXC_ERR);
    std::array<bool, kSlots> is_received{};
    bool is_lent = true;
    std::array<Status, 2> status;
    for (const Deadline deadline = DeadlineAfter(kContractPatience); Now() < deadline;) {
      bool moved = false;
      for (const size_t side : {0, 1}) {
        if (status[side].ok()) status[side] = end(static_cast<int>(side)).Progress(&moved);
      }
      for (size_t i = 0; i < kSlots; ++i) {
        const Recv& recv = recvs_[i];
        if (is_received[i] || recv.code == Code::kInProgress) continue;
        is_received[i] = true;
        if (recv.code == Code::kOk) {
          ASSERT_TRUE(IsAll(recv.data, kSlotBytes, std::byte{0x5a})) << "slice " << i;
          ASSERT_TRUE(recv.data == recv.landing || recv.landing == nullptr);
        }
        if (recv.landing != nullptr) std::memset(recv.landing, 0x77, kSlotBytes);
      }
      if (is_lent && sends_.back().code != Code::kInProgress) {
        std::memset(from(), 0xee, kBytes);
        is_lent = false;
      }
      const bool all_received = std::ranges::count(is_received, true) == kSlots;
      if (!is_lent && all_received && (way == 3 || !status[0].ok() || !status[1].ok())) break;
      if (way < 2 && !closed[way]) closed[way] = end(static_cast<int>(way)).Close();
      // Owners leave once their requests are over. The word of what an end has taken may be what failed; then its
      // farewell tells.
      if (way > 1 && all_received && !closed[1]) closed[1] = end(1).Close();
      if (way > 1 && !is_lent && !closed[0]) closed[0] = end(0).Close();
      if (!moved) link_->Pass();
    }
    ASSERT_FALSE(is_lent);
    AwaitIdleDevice();
    for (const Recv& recv : recvs_) {
      ASSERT_NE(recv.code, Code::kInProgress);
      if (recv.landing != nullptr) {
        ASSERT_TRUE(IsAll(recv.landing, kSlotBytes, std::byte{0x77}));
      }
    }
    SimulatedVerbs::FailAfter(UINT64_MAX, IBV_WC_SUCCESS);
  }
  SimulatedVerbs::Seed(1);
}

}  // namespace
}  // namespace annulus
