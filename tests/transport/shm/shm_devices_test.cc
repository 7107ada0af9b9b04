// Shared memory: slices that lie in memory of a device, which the peer's device reads there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tests/transport/contract/contract_traffic.h"
#include "tests/transport/shm/shm_pair.h"
#include "tests/transport/shm/shm_test_devices.h"
#include "transport/memory/device_sharing.h"
#include "transport/shm/shm_own_devices.h"
#include "transport/shm/shm_peer_devices.h"
#include "transport/shm/shm_regions.h"

namespace annulus {
namespace {

constexpr size_t kSlotBytes = 64 * 1024;
constexpr int kSlots = 4;
constexpr size_t kBytes = TestDevices::kBytes;
static_assert(kBytes == 8 * kSlotBytes);

class ShmDevicesTest : public testing::Test {
 protected:
  void Make(const DeviceReads* reads = nullptr) {
    pair_ = std::make_unique<ShmPair>();
    ASSERT_TRUE(pair_->Make({.slot_bytes = kSlotBytes, .slots = kSlots}, &devices_, reads));
    data_ = devices_.Make(0);
    reader_ = devices_.Make(1);
    for (size_t i = 0; i < kBytes; ++i) data_[i] = static_cast<std::byte>(i * 7 + i / 256);
  }
  Status Progress(int side) {
    bool moved = false;
    return pair_->end(side).Progress(&moved);
  }
  void Rounds() {
    for (int i = 0; i < 10; ++i) {
      static_cast<void>(Progress(0));
      static_cast<void>(Progress(1));
    }
  }
  bool SpinUntil(const std::function<bool()>& over) {
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while (!over() && Now() < deadline) Rounds();
    return over();
  }
  bool Stays(const std::byte* data, size_t bytes = kSlotBytes) {
    return pair_->end(0).shortcuts().in_place->SendsFrom(data, bytes);
  }
  // A receive of rank 1 for that device's work; null: for the CPU's.
  Recv* Expect(const std::byte* reader) {
    Recv* const recv = &recvs_.emplace_back();
    recv->capacity = kSlotBytes;
    recv->reader = reader;
    EXPECT_TRUE(pair_->end(1).PostRecv(recv).ok());
    return recv;
  }
  Send* Post(const std::byte* from, uint32_t bytes = kSlotBytes, uint64_t tag = 0) {
    Send* const send = &sends_.emplace_back();
    send->tag.words[0] = tag;
    send->data = from;
    send->bytes = send->ready = bytes;
    const Status status = pair_->end(0).PostSend(send);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return send;
  }
  void PostSlot() {
    std::byte* slot = nullptr;
    ASSERT_TRUE(pair_->end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
    Post(slot);
  }
  // Until rank 1 has opened the allocation for the device of `reader_` and rank 0 knows.
  void Open(const std::byte* data) {
    EXPECT_FALSE(Stays(data)) << "before the peer has answered";
    Recv* const first = Expect(nullptr);
    SpinUntil([&] { return !Stays(data) && Progress(1).ok() && rounds_++ > 200; });
    rounds_ = 0;
    EXPECT_FALSE(Stays(data)) << "opened for nobody";
    Recv* const second = Expect(reader_);
    EXPECT_TRUE(SpinUntil([&] { return Stays(data); }));
    for (Recv* const each : {first, second}) {
      PostSlot();
      EXPECT_TRUE(SpinUntil([&] { return each->code == Code::kOk; }));
      EXPECT_FALSE(each->on_device);
      pair_->end(1).Release(each);
    }
    Rounds();
  }

  TestDevices devices_;
  std::unique_ptr<ShmPair> pair_;
  std::byte* data_ = nullptr;
  std::byte* reader_ = nullptr;
  int rounds_ = 0;
  std::deque<Send> sends_;
  std::deque<Recv> recvs_;
};

TEST_F(ShmDevicesTest, TheDeviceReadsWhereTheSliceIsUntilRelease) {
  Make();
  Open(data_);
  Recv* const recv = Expect(reader_);
  Send* const send = Post(data_ + 100, kSlotBytes, 7);
  Rounds();
  ASSERT_EQ(recv->code, Code::kOk);
  EXPECT_TRUE(recv->on_device);
  EXPECT_TRUE(recv->read_only);
  EXPECT_EQ(recv->tag.words[0], 7u);
  EXPECT_EQ(recv->data, data_ + 100);
  EXPECT_TRUE(devices_.IsOpen(1, recv->data, kSlotBytes));
  EXPECT_EQ(send->code, Code::kInProgress) << "the peer's device may be reading";
  pair_->end(1).Release(recv);
  EXPECT_EQ(recv->code, Code::kOk);
  Rounds();
  EXPECT_EQ(send->code, Code::kOk);
  EXPECT_EQ(devices_.copies, 0);
  pair_->Sever(1);
  EXPECT_TRUE(devices_.opened.empty());
}

TEST_F(ShmDevicesTest, WhatIsSmallOrNoDevicesMemoryGoesThroughSlots) {
  Make();
  Open(data_);
  std::vector<std::byte> ordinary(kSlotBytes);
  EXPECT_FALSE(Stays(ordinary.data()));
  EXPECT_FALSE(Stays(data_, ShmSender::kLeastOnDevice - 1));
  EXPECT_TRUE(Stays(data_, ShmSender::kLeastOnDevice));
  EXPECT_FALSE(Stays(data_ + kBytes - 100));
  EXPECT_TRUE(pair_->end(0).limits().in_place.Has(MemoryKind::kDevice));
}

TEST_F(ShmDevicesTest, WhatTheCpuOrAnotherDeviceReadsIsCopiedIntoTheSlot) {
  Make();
  Open(data_);
  std::byte* const other = devices_.Make(2);
  for (const std::byte* const reader : {static_cast<const std::byte*>(nullptr), static_cast<const std::byte*>(other)}) {
    devices_.holds = true;
    Recv* const recv = Expect(reader);
    Recv* const next = Expect(reader_);
    Send* const send = Post(data_ + 200);
    Post(data_ + 300);
    Rounds();
    EXPECT_EQ(recv->code, Code::kInProgress) << "the copy is not there";
    EXPECT_FALSE(recv->started);
    EXPECT_EQ(next->code, Code::kInProgress) << "out of order";
    EXPECT_FALSE(pair_->end(1).Arm()) << "nobody rings when the copy is there";
    for (const auto& copy : devices_.held) copy();
    devices_.held.clear();
    Rounds();
    ASSERT_EQ(recv->code, Code::kOk);
    EXPECT_FALSE(recv->on_device);
    EXPECT_TRUE(recv->read_only);
    EXPECT_NE(recv->data, data_ + 200);
    EXPECT_EQ(std::memcmp(recv->data, data_ + 200, kSlotBytes), 0);
    EXPECT_EQ(send->code, Code::kInProgress);
    ASSERT_EQ(next->code, Code::kOk);
    EXPECT_EQ(next->data, data_ + 300);
    pair_->end(1).Release(recv);
    pair_->end(1).Release(next);
    Rounds();
    EXPECT_EQ(send->code, Code::kOk);
  }
  EXPECT_EQ(devices_.copies, 2);
}

TEST_F(ShmDevicesTest, ThePeekOfAShortSliceDoesNotTouchIt) {
  Make();
  Open(data_);
  Post(data_, kSlotBytes, 9);
  ShortPath* const path = pair_->end(1).shortcuts().short_path;
  ShortPath::Slice slice;
  ASSERT_TRUE(path->Peek(&slice));
  EXPECT_EQ(slice.data, nullptr);
  std::vector<std::byte> to(kSlotBytes);
  EXPECT_FALSE(path->PopInto(to.data()));
  Recv* const recv = Expect(nullptr);
  Rounds();
  ASSERT_EQ(recv->code, Code::kOk);
  EXPECT_EQ(std::memcmp(recv->data, data_, kSlotBytes), 0);
}

TEST_F(ShmDevicesTest, AnotherAllocationAtTheSameAddressIsAnotherOne) {
  Make();
  Open(data_);
  devices_.Free(data_);
  // What it holds lies elsewhere for the peer.
  std::byte* const again = devices_.Make(0, data_);
  ASSERT_EQ(again, data_);
  EXPECT_FALSE(Stays(data_)) << "the peer would read what was freed";
  EXPECT_TRUE(SpinUntil([&] { return devices_.opened.empty(); })) << "the old one stays open";
  Recv* const recv = Expect(reader_);
  EXPECT_TRUE(SpinUntil([&] { return Stays(data_); }));
  Post(data_);
  Rounds();
  ASSERT_EQ(recv->code, Code::kOk);
  EXPECT_NE(recv->data, data_);
  EXPECT_TRUE(devices_.IsOpen(1, recv->data, kSlotBytes));
  EXPECT_EQ(devices_.opened.size(), 1u);
  devices_.Free(data_);
  ++devices_.describes;  // To another peer, or for a fold.
  pair_->end(1).Release(recv);
  EXPECT_TRUE(SpinUntil([&] { return devices_.opened.empty(); })) << "it is in the way of what was described";
}

TEST_F(ShmDevicesTest, AnEndThatCannotOrMayNotLeavesAllInSlots) {
  enum { kRefuses, kStays, kNotPinned, kNoSharing, kOffHere, kOffThere, kCases };
  for (int c = 0; c < kCases; ++c) {
    TestDevices devices;
    ShmPair pair;
    devices.refuses = c == kRefuses;
    devices.stays = c == kStays;
    devices.pins = c != kNotPinned;
    devices.shares = c != kNoSharing;
    const DeviceReads reads[] = {c == kOffHere ? DeviceReads::kOff : DeviceReads::kAuto,
                                 c == kOffThere ? DeviceReads::kOff : DeviceReads::kAuto};
    ASSERT_TRUE(pair.Make({.slot_bytes = kSlotBytes, .slots = kSlots}, &devices, reads));
    std::byte* const data = devices.Make(0);
    std::byte* const reader = devices.Make(1);
    Recv recv;
    recv.capacity = kSlotBytes;
    recv.reader = reader;
    InPlace* const in_place = pair.end(0).shortcuts().in_place;
    EXPECT_FALSE(in_place->SendsFrom(data, kSlotBytes));
    ASSERT_TRUE(pair.end(1).PostRecv(&recv).ok());
    for (int i = 0; i < 3000; ++i) {
      bool moved = false;
      ASSERT_TRUE(pair.end(0).Progress(&moved).ok());
      ASSERT_TRUE(pair.end(1).Progress(&moved).ok());
      ASSERT_FALSE(in_place->SendsFrom(data, kSlotBytes)) << c;
    }
    EXPECT_TRUE(devices.opened.empty());
  }
}

TEST_F(ShmDevicesTest, DataOfASenderThatGaveUpIsNotTrusted) {
  for (const bool by_device : {true, false}) {
    SCOPED_TRACE(by_device);
    Make();
    Open(data_);
    Recv* const recv = Expect(by_device ? reader_ : nullptr);
    Send* const send = Post(data_);
    Rounds();
    ASSERT_EQ(recv->code, Code::kOk);
    pair_->end(0).Close();
    EXPECT_EQ(send->code, Code::kAborted);
    pair_->end(1).Release(recv);
    EXPECT_EQ(recv->code, Code::kPeerLost);
  }
}

TEST_F(ShmDevicesTest, WhatIsReadStaysOpenWhenThePeerIsGone) {
  Make();
  Open(data_);
  Recv* const recv = Expect(reader_);
  Post(data_);
  Rounds();
  ASSERT_EQ(recv->code, Code::kOk);
  pair_->Sever(0);
  const Deadline deadline = DeadlineAfter(kContractPatience);
  while (Progress(1).ok() && Now() < deadline) continue;
  EXPECT_EQ(Progress(1).code(), Code::kPeerLost);
  EXPECT_TRUE(devices_.IsOpen(1, recv->data, kSlotBytes));
  pair_->end(1).Release(recv);
  pair_->Sever(1);
  EXPECT_TRUE(devices_.opened.empty());
}

TEST_F(ShmDevicesTest, AnEndWaitsForACopyThatNobodyWantsAnyMore) {
  Make();
  Open(data_);
  devices_.holds = true;
  Expect(nullptr);
  Post(data_);
  Rounds();
  ASSERT_EQ(devices_.held.size(), 1U);
  pair_.reset();
  EXPECT_TRUE(devices_.held.empty()) << "its slots are gone";
}

TEST_F(ShmDevicesTest, ACopyThatFailsBreaksTheLinkAndSaysWhat) {
  for (const bool later : {false, true}) {
    devices_.fails_to_copy = devices_.fails_later = false;
    Make();
    Open(data_);
    devices_.fails_to_copy = !later;
    devices_.holds = devices_.fails_later = later;
    Recv* const recv = Expect(nullptr);
    Post(data_);
    EXPECT_TRUE(SpinUntil([&] { return recv->code != Code::kInProgress; }));
    const Status status = Progress(1);
    EXPECT_EQ(status.code(), Code::kSystem);
    EXPECT_NE(status.message().find("copying a slice in a device's memory"), std::string::npos) << status.message();
    devices_.held.clear();
  }
}

TEST_F(ShmDevicesTest, APlaceThatCannotBeBreaksTheLink) {
  const std::function<void(ShmPlace*)> changes[] = {
      [](ShmPlace* place) { ++place->region; },
      [](ShmPlace* place) { place->region = kShmOnDevice; },
      [](ShmPlace* place) { place->offset = kBytes - kSlotBytes + 1; },
      [](ShmPlace* place) { place->offset = ~uint64_t{0}; },
  };
  for (const auto& change : changes) {
    Make();
    Open(data_);
    Post(data_);
    ShmDirection direction = pair_->mapping().direction(0);
    change(reinterpret_cast<ShmPlace*>(direction.ring[2].payload));  // Two slices came before.
    Recv* const recv = Expect(reader_);
    Rounds();
    EXPECT_EQ(recv->code, Code::kProtocol);
    EXPECT_NE(Progress(1).message().find("place in a device's memory"), std::string::npos) << Progress(1).message();
  }
}

// What the slice is that is being copied must not change.
TEST_F(ShmDevicesTest, ASliceThatChangesWhileItIsCopiedBreaksTheLink) {
  Make();
  Open(data_);
  devices_.holds = true;
  Recv* const recv = Expect(nullptr);
  Post(data_);
  Rounds();
  ASSERT_EQ(devices_.held.size(), 1u);
  pair_->mapping().direction(0).ring[2].bytes.store(100);
  Rounds();
  EXPECT_EQ(recv->code, Code::kProtocol);
  devices_.held.front()();
}

TEST_F(ShmDevicesTest, WrongNoticesBreakTheLink) {
  const SharedDeviceMemory nothing;
  constexpr uint64_t kFirst = kShmOnDevice + 1;
  const auto send = [](ShmPeerRegions* regions, const ShmNotice& notice, const SharedDeviceMemory* shared) {
    // In two parts.
    const auto* const bytes = reinterpret_cast<const char*>(&notice);
    regions->Feed(bytes, 5, -1);
    regions->Feed(bytes + 5, sizeof notice - 5, -1);
    if (shared == nullptr) return;
    regions->Feed(reinterpret_cast<const char*>(shared), 100, -1);
    regions->Feed(reinterpret_cast<const char*>(shared) + 100, sizeof *shared - 100, -1);
  };
  const auto is_refused = [&](const ShmNotice& notice, bool has_shared, bool twice) {
    ShmPeerDevices devices(&devices_, &devices_, {}, 0, [](uint64_t) { return true; });
    ShmOwnDevices own(&devices_, [](const ShmNotice&, const SharedDeviceMemory*) { return true; });
    ShmPeerRegions regions([&](const ShmNotice& each, const SharedDeviceMemory* shared) {
      if (shared != nullptr) return devices.OnShared(each, *shared);
      return each.kind == ShmNotice::kOpened ? own.OnOpened(each.region) : devices.OnForgotten(each.region);
    });
    send(&regions, notice, has_shared ? &nothing : nullptr);
    if (twice) send(&regions, notice, has_shared ? &nothing : nullptr);
    ShmFault fault;
    return regions.HasFault(&fault);
  };
  EXPECT_FALSE(is_refused({ShmNotice::kSharesDevice, kFirst, kBytes}, true, false));
  EXPECT_TRUE(is_refused({ShmNotice::kSharesDevice, kFirst, kBytes}, true, true)) << "known already";
  EXPECT_TRUE(is_refused({ShmNotice::kSharesDevice, 1, kBytes}, true, false)) << "no number of a device's region";
  EXPECT_TRUE(is_refused({ShmNotice::kSharesDevice, kFirst, 0}, true, false));
  EXPECT_TRUE(is_refused({ShmNotice::kSharesDevice, kFirst, ~uint64_t{0}}, true, false));
  EXPECT_TRUE(is_refused({ShmNotice::kForgets, kFirst, 0}, false, false)) << "never told of";
  EXPECT_TRUE(is_refused({ShmNotice::kOpened, kFirst, 0}, false, false)) << "never told of";
  EXPECT_TRUE(is_refused({ShmNotice::kOpened, 1, 0}, false, false));
}

TEST_F(ShmDevicesTest, ALinkKnowsABoundedNumberOfAllocations) {
  Make();
  std::vector<std::byte*> all;
  for (size_t i = 0; i < kShmMostDeviceRegions + 10; ++i) {
    all.push_back(devices_.Make(0));
    SpinUntil([&] { return !Stays(all.back()); });
    Recv* const recv = Expect(reader_);
    Rounds();
    PostSlot();
    ASSERT_TRUE(SpinUntil([&] { return recv->code == Code::kOk; }));
    pair_->end(1).Release(recv);
    Rounds();
  }
  const auto known = [&] { return static_cast<size_t>(std::ranges::count_if(all, [&](auto* a) { return Stays(a); })); };
  EXPECT_TRUE(SpinUntil([&] { return known() == kShmMostDeviceRegions; })) << known();
  // What is freed makes room.
  for (size_t i = 0; i < 10; ++i) devices_.Free(all[i]);
  all.erase(all.begin(), all.begin() + 10);
  EXPECT_TRUE(SpinUntil([&] {
    if (known() == all.size()) return true;
    Recv* const recv = Expect(reader_);
    PostSlot();
    EXPECT_TRUE(SpinUntil([&] { return recv->code == Code::kOk; }));
    pair_->end(1).Release(recv);
    Rounds();
    return false;
  }));
}

}  // namespace
}  // namespace annulus
