// Contract tests of streams of slices: cut-through, landing, duplex saturation and long random traffic.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/soak/rounds.h"
#include "tests/transport/contract/contract_fixture.h"

namespace annulus {
namespace {

// A sanitizer's build looks at each step of a slice, and has seen all of them after a few dozen.
int Slices(int usual) { return kSanitized ? usual / 4 : usual; }

TEST_P(EndpointContract, ASliceIsPassedOnNoFurtherThanItIsReady) {
  std::mt19937 random(11);
  const Plan plan = SmallPlan();
  for (int round = 0; round < (kSanitized ? 6 : 20); ++round) {
    std::byte* slot = nullptr;
    ASSERT_TRUE(RoundsUntil([&] { return end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok(); }));
    std::memset(slot, 0x77, slot_bytes());  // What must never be seen.
    Send* send = NewSend();
    send->tag = plan.TagOf(round);
    send->bytes = slot_bytes() - random() % 100;
    send->data = slot;
    ASSERT_TRUE(RoundsUntil([&] { return end(0).PostSend(send).ok(); }));
    Recv* recv = MustRecv(1);
    ASSERT_NE(recv, nullptr);
    uint32_t seen = 0;
    while (recv->code == Code::kInProgress) {
      ASSERT_FALSE(Expired());
      if (random() % 4 == 0 && send->ready < send->bytes) {
        const uint32_t ready = std::min<uint32_t>(send->bytes, send->ready + 1 + random() % 1500);
        plan.Fill(round, slot, send->ready, ready);
        send->ready = ready;
      }
      Round();
      ASSERT_GE(recv->arrived, seen);
      ASSERT_LE(recv->arrived, send->ready) << "bytes arrived that were not ready";
      for (; seen < recv->arrived; ++seen) ASSERT_EQ(recv->data[seen], plan.At(round, seen));
      ASSERT_TRUE(send->ready == send->bytes || send->code == Code::kInProgress) << "completed before all was ready";
    }
    ASSERT_TRUE(RoundsUntil([&] { return send->code == Code::kOk; }));
    EXPECT_EQ(recv->arrived, send->bytes);
    ReleaseIfHeld(1, recv);
  }
}

TEST_P(EndpointContract, LaterSlicesWaitForAnUnreadyOne) {
  const Plan plan = SmallPlan();
  std::byte* slots[2] = {};
  for (auto& slot : slots) ASSERT_TRUE(end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  Send* sends[2];
  Recv* recvs[2];
  for (int i = 0; i < 2; ++i) {
    sends[i] = NewSend();
    sends[i]->tag = plan.TagOf(i);
    sends[i]->data = slots[i];
    sends[i]->bytes = 300;
    sends[i]->ready = i == 0 ? 150 : 300;
    plan.Fill(i, slots[i], 0, 300);
    ASSERT_TRUE(end(0).PostSend(sends[i]).ok());
    recvs[i] = MustRecv(1);
    ASSERT_NE(recvs[i], nullptr);
  }
  SomeRounds();
  EXPECT_EQ(recvs[0]->code, Code::kInProgress);
  EXPECT_EQ(recvs[1]->code, Code::kInProgress) << "overtook the first slice";
  EXPECT_EQ(sends[1]->code, Code::kInProgress) << "completed out of order";
  sends[0]->ready = 300;
  ASSERT_TRUE(RoundsUntil([&] { return recvs[1]->code == Code::kOk && sends[1]->code == Code::kOk; }));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(plan.FirstWrong(i, recvs[i]->data, 300), -1);
    ReleaseIfHeld(1, recvs[i]);
  }
}

TEST_P(EndpointContract, UserMemoryIsSentIfLimitsAllowAndIsNeverWritten) {
  if (!limits().sends_from.Has(MemoryKind::kHost)) GTEST_SKIP() << "this backend sends slots only";
  const Plan plan = SmallPlan();
  for (int i = 0; i < 50; ++i) {
    std::byte* memory = NewBuffer(slot_bytes() + 3) + i % 4;
    plan.Fill(i, memory, 0, plan.Bytes(i));
    Send* send = NewSend();
    send->tag = plan.TagOf(i);
    send->data = memory;
    send->bytes = send->ready = plan.Bytes(i);
    ASSERT_TRUE(RoundsUntil([&] { return end(0).PostSend(send).ok(); }));
    Recv* recv = MustRecv(1);
    ASSERT_NE(recv, nullptr);
    ASSERT_TRUE(RoundsUntil([&] { return recv->code == Code::kOk; }));
    ASSERT_EQ(plan.FirstWrong(i, recv->data, recv->bytes), -1);
    std::memset(recv->data, 0, recv->bytes);  // The receiver's right; it must not reach the sender.
    ReleaseIfHeld(1, recv);
    ASSERT_TRUE(RoundsUntil([&] { return send->code == Code::kOk; }));
    EXPECT_EQ(plan.FirstWrong(i, memory, send->bytes), -1);
  }
}

TEST_P(EndpointContract, OneDirectionKeepsItsOrder) {
  const Plan none{.slices = 0};
  RunTraffic({.seed = 21, .slices = Slices(400), .max_bytes = limits().slot_bytes}, none);
  RunTraffic({.seed = 22, .slices = Slices(400), .max_bytes = limits().slot_bytes, .window = 1}, none);
}

TEST_P(EndpointContract, LandingIsHonouredExactlyWhenLimitsSaySo) {
  RunTraffic({.seed = 23, .slices = Slices(400), .max_bytes = limits().slot_bytes, .landing = true},
             {.seed = 24, .slices = Slices(400), .max_bytes = limits().slot_bytes, .landing = true});
}

TEST_P(EndpointContract, CutThroughDeliversEverything) {
  RunTraffic({.seed = 25, .slices = Slices(300), .max_bytes = limits().slot_bytes, .gradual = true, .landing = true},
             {.seed = 26, .slices = Slices(300), .max_bytes = limits().slot_bytes, .gradual = true});
}

TEST_P(EndpointContract, DuplexSaturationWithTinyWindowsDoesNotDeadlock) {
  ASSERT_TRUE(Open({.slot_bytes = 64 * 1024, .slots = 2}));
  const size_t bytes = 64 * 1024;
  RunTraffic({.seed = 27, .slices = Slices(300), .max_bytes = bytes, .window = 2},
             {.seed = 28, .slices = Slices(300), .max_bytes = bytes, .window = 2});
}

TEST_P(EndpointContract, ThousandsOfRandomSlicesArriveUnharmed) {
  for (uint64_t seed = 100; seed < 100 + Rounds(4, 500); ++seed) {
    ASSERT_TRUE(Open({.slot_bytes = 4096, .slots = 2 + static_cast<int>(seed % 4)}));
    Plan plan{.seed = seed,
              .slices = Slices(600),
              .max_bytes = limits().slot_bytes,
              .window = 1 + static_cast<int>(seed % 7)};
    plan.landing = seed % 2 == 0;
    plan.gradual = seed % 3 == 0;
    Plan back = plan;
    back.seed = seed + 1000;
    back.window = 9;
    RunTraffic(plan, back);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace annulus
