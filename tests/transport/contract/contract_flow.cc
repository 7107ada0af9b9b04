// Contract tests of a healthy link: completion, order, content, sizes, slots and back-pressure.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/transport/contract/contract_fixture.h"

namespace annulus {
namespace {

TEST_P(EndpointContract, EndsKnowTheirPeersAndLimits) {
  for (int side = 0; side < 2; ++side) {
    EXPECT_EQ(end(side).peer(), 1 - side);
    EXPECT_FALSE(end(side).Describe().empty());
    EXPECT_GE(end(side).limits().slot_bytes, 4096u);
    EXPECT_GE(end(side).limits().send_slots, 1);
    EXPECT_GE(end(side).limits().recv_slots, 1);
  }
  EXPECT_EQ(end(0).limits().slot_bytes, end(1).limits().slot_bytes);
}

TEST_P(EndpointContract, PostsNeverCompleteInline) {
  const Plan plan = SmallPlan();
  Send* send = MustSend(0, plan, 0, 100);
  ASSERT_NE(send, nullptr);
  EXPECT_EQ(send->code, Code::kInProgress);
  ASSERT_TRUE(RoundsUntil([&] { return send->code != Code::kInProgress || outcome_[0].ok() == false; }));
  SomeRounds();  // The slice is there before the receive is posted.
  Recv* recv = MustRecv(1);
  ASSERT_NE(recv, nullptr);
  EXPECT_EQ(recv->code, Code::kInProgress);
  EXPECT_EQ(recv->arrived, 0u);
  EXPECT_TRUE(RoundsUntil([&] { return recv->code == Code::kOk; }));
  ReleaseIfHeld(1, recv);
}

TEST_P(EndpointContract, ProgressReportsEveryChangeAndNeverClearsMoved) {
  const Plan plan = SmallPlan();
  Recv* recv = MustRecv(1);
  Send* send = MustSend(0, plan, 0, 777);
  ASSERT_TRUE(recv != nullptr && send != nullptr);
  while (recv->code == Code::kInProgress || send->code == Code::kInProgress) {
    ASSERT_FALSE(Expired());
    const Code send_before = send->code;
    const bool sender_moved = Progress(0);
    EXPECT_TRUE(sender_moved || send->code == send_before);
    const uint32_t arrived_before = recv->arrived;
    const bool started_before = recv->started;
    const Code recv_before = recv->code;
    const bool receiver_moved = Progress(1);
    EXPECT_TRUE(receiver_moved ||
                (recv->arrived == arrived_before && recv->started == started_before && recv->code == recv_before));
    if (!sender_moved && !receiver_moved) link_->Pass();
  }
  bool moved = true;
  EXPECT_TRUE(end(1).Progress(&moved).ok());
  EXPECT_TRUE(moved) << "Progress set it to false";
  ReleaseIfHeld(1, recv);
}

TEST_P(EndpointContract, ARequestIsNeverTouchedAfterItsCompletion) {
  constexpr int kSlices = 20;
  const Plan plan = SmallPlan();
  std::vector<Send*> sends;
  std::vector<Recv*> recvs;
  auto poison = [](auto* request) { std::memset(static_cast<void*>(request), 0xa5, sizeof(*request)); };
  for (int i = 0; i < kSlices; ++i) {
    Recv* recv = MustRecv(1);
    Send* send = MustSend(0, plan, i);
    ASSERT_TRUE(recv != nullptr && send != nullptr);
    ASSERT_TRUE(RoundsUntil([&] { return recv->code == Code::kOk && send->code == Code::kOk; }));
    ReleaseIfHeld(1, recv);
    poison(recv);
    poison(send);
    sends.push_back(send);
    recvs.push_back(recv);
  }
  SomeRounds();
  CloseWholly(end(0));
  SomeRounds();
  CloseWholly(end(1));
  auto intact = [](auto* request) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(request);
    return std::all_of(bytes, bytes + sizeof(*request), [](unsigned char b) { return b == 0xa5; });
  };
  EXPECT_TRUE(std::all_of(sends.begin(), sends.end(), intact));
  EXPECT_TRUE(std::all_of(recvs.begin(), recvs.end(), intact));
}

TEST_P(EndpointContract, ZeroByteSlicesCarryTheirTags) {
  const Plan plan = SmallPlan();
  for (int i = 0; i < 30; ++i) {
    Recv* recv = MustRecv(1);
    Send* send = MustSend(0, plan, i, 0);
    ASSERT_TRUE(recv != nullptr && send != nullptr);
    ASSERT_TRUE(RoundsUntil([&] { return recv->code == Code::kOk && send->code == Code::kOk; }));
    EXPECT_TRUE(recv->started);
    EXPECT_EQ(recv->bytes, 0u);
    EXPECT_NE(recv->data, nullptr) << "without landing, data points into a slot";
    EXPECT_EQ(recv->tag, plan.TagOf(i));
    ReleaseIfHeld(1, recv);
  }
}

TEST_P(EndpointContract, EverySizeFromOneByteToAFullSlotArrives) {
  const Plan plan = SmallPlan();
  const uint32_t full = slot_bytes();
  const uint32_t sizes[] = {1,   2,    3,    7,    8,    31,   63,           64,       65,
                            255, 1000, 1023, 2049, 4095, 4096, full / 2 + 1, full - 1, full};
  uint64_t index = 0;
  for (uint32_t bytes : sizes) {
    Recv* recv = MustRecv(1);
    Send* send = MustSend(0, plan, index, bytes);
    ASSERT_TRUE(recv != nullptr && send != nullptr) << bytes;
    ASSERT_TRUE(RoundsUntil([&] { return recv->code == Code::kOk && send->code == Code::kOk; })) << bytes;
    EXPECT_EQ(recv->bytes, bytes);
    EXPECT_EQ(recv->arrived, bytes);
    EXPECT_EQ(plan.FirstWrong(index, recv->data, bytes), -1) << bytes;
    ReleaseIfHeld(1, recv);
    ++index;
  }
}

TEST_P(EndpointContract, SlicesOfAMegabyteArrive) {
  ASSERT_TRUE(Open({.slot_bytes = 1 << 20, .slots = 3}));
  ASSERT_GE(limits().slot_bytes, size_t{1} << 20);
  const Plan plan{.seed = 7, .slices = 12, .max_bytes = size_t{1} << 20, .landing = true};
  RunTraffic(plan, plan);
}

TEST_P(EndpointContract, SlotsAreAlignedTo64BytesAndDistinct) {
  std::vector<std::byte*> slots;
  for (int i = 0; i < limits().send_slots; ++i) {
    std::byte* slot = nullptr;
    ASSERT_TRUE(end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slot) % 64, 0u);
    std::memset(slot, i, limits().slot_bytes);  // All of it is ours to write.
    slots.push_back(slot);
  }
  std::sort(slots.begin(), slots.end());
  for (size_t i = 1; i < slots.size(); ++i) EXPECT_GE(slots[i], slots[i - 1] + limits().slot_bytes);
}

TEST_P(EndpointContract, AcquireSlotEndsAtSendSlotsAndRecovers) {
  const Plan plan = SmallPlan();
  for (int round = 0; round < 3; ++round) {
    std::vector<std::byte*> slots;
    auto acquire = [&] {
      std::byte* slot = nullptr;
      const bool ok = end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok();
      if (ok) slots.push_back(slot);
      return static_cast<int>(slots.size()) == limits().send_slots;
    };
    ASSERT_TRUE(RoundsUntil(acquire)) << "slots did not come back in round " << round;
    std::byte* slot = nullptr;
    EXPECT_TRUE(end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).would_block());
    for (size_t i = 0; i < slots.size(); ++i) {
      Send* send = NewSend();
      send->data = slots[i];
      send->bytes = send->ready = 64;
      send->tag = plan.TagOf(i);
      plan.Fill(i, slots[i], 0, 64);
      ASSERT_TRUE(RoundsUntil([&] { return end(0).PostSend(send).ok(); }));
      Recv* recv = MustRecv(1);
      ASSERT_NE(recv, nullptr);
      ASSERT_TRUE(RoundsUntil([&] { return recv->code == Code::kOk; }));
      EXPECT_EQ(plan.FirstWrong(i, recv->data, 64), -1);
      ReleaseIfHeld(1, recv);
    }
  }
}

TEST_P(EndpointContract, PostRecvEndsAtRecvSlotsAndRecoversInAnyOrderOfRelease) {
  const Plan plan = SmallPlan();
  const int slots = end(1).limits().recv_slots;
  std::mt19937 random(3);
  uint64_t index = 0;
  for (int round = 0; round < 5; ++round) {
    std::vector<Recv*> recvs;
    for (int i = 0; i < slots; ++i) recvs.push_back(MustRecv(1));
    ASSERT_EQ(std::count(recvs.begin(), recvs.end(), nullptr), 0) << "round " << round;
    EXPECT_TRUE(end(1).PostRecv(NewRecv(slot_bytes())).would_block()) << "posted receives do not count";
    const uint64_t first = index;
    for (int i = 0; i < slots; ++i) ASSERT_NE(MustSend(0, plan, index++, 500), nullptr);
    ASSERT_TRUE(RoundsUntil([&] { return recvs.back()->code == Code::kOk; }));
    const bool holds_slots = recvs[0]->data != recvs[0]->landing;
    EXPECT_TRUE(holds_slots) << "data without landing lies in a slot";
    EXPECT_TRUE(end(1).PostRecv(NewRecv(slot_bytes())).would_block()) << "held receives do not count";
    std::vector<int> order(slots);
    for (int i = 0; i < slots; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    for (int i : order) {
      EXPECT_EQ(plan.FirstWrong(first + i, recvs[i]->data, 500), -1);
      ReleaseIfHeld(1, recvs[i]);
    }
  }
}

TEST_P(EndpointContract, LandingReceivesNeedNoSlots) {
  if (!end(1).limits().lands_in.Has(MemoryKind::kHost)) GTEST_SKIP() << "this backend never lands";
  const Plan plan = SmallPlan();
  const int count = 3 * end(1).limits().recv_slots;
  std::vector<Recv*> recvs;
  for (int i = 0; i < count; ++i) {
    Recv* recv = NewRecv(slot_bytes());
    recv->landing = NewBuffer(slot_bytes());
    ASSERT_TRUE(end(1).PostRecv(recv).ok()) << i;
    recvs.push_back(recv);
  }
  for (int i = 0; i < end(1).limits().recv_slots; ++i) {
    ASSERT_NE(MustRecv(1), nullptr) << "landing receives took the slots of others";
  }
  for (int i = 0; i < count; ++i) ASSERT_NE(MustSend(0, plan, i), nullptr);
  ASSERT_TRUE(RoundsUntil([&] { return recvs.back()->code == Code::kOk; }));
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(plan.FirstWrong(i, recvs[i]->landing, plan.Bytes(i)), -1) << i;
  }
}

TEST_P(EndpointContract, MoreSlicesThanSlotsWaitAndNoneIsLost) {
  const Plan plan = SmallPlan();
  // Nobody receives: the sender must meet the end of its slots, and lose nothing by it.
  std::vector<Send*> sends;
  std::byte* slot = nullptr;
  bool blocked = false;
  for (int idle = 0; idle < 200 && !blocked && sends.size() < 20000;) {
    const Status status = slot != nullptr ? Status() : end(0).AcquireSlot(Endpoint::kWholeSlot, &slot);
    if (status.ok()) {
      const uint64_t index = sends.size();
      Send* send = NewSend();
      send->tag = plan.TagOf(index);
      send->bytes = send->ready = slot_bytes();
      send->data = slot;
      plan.Fill(index, slot, 0, slot_bytes());
      if (end(0).PostSend(send).ok()) {
        sends.push_back(send);
        slot = nullptr;
        idle = 0;
        continue;
      }
    }
    Round();
    blocked = ++idle == 200;
  }
  EXPECT_TRUE(blocked) << "a sender without a receiver must meet back-pressure";
  for (size_t i = 0; i < sends.size(); ++i) {
    Recv* recv = nullptr;
    ASSERT_TRUE(RoundsUntil([&] { return (recv = MustRecv(1)) != nullptr; })) << i;
    ASSERT_TRUE(RoundsUntil([&] { return recv->code == Code::kOk; })) << i << " of " << sends.size();
    ASSERT_EQ(recv->tag, plan.TagOf(i));
    ASSERT_EQ(plan.FirstWrong(i, recv->data, recv->bytes), -1) << i;
    ReleaseIfHeld(1, recv);
  }
  EXPECT_TRUE(RoundsUntil([&] { return sends.back()->code == Code::kOk; }));
}

}  // namespace
}  // namespace annulus
