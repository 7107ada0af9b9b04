// Links over several rails: which rail a slice takes, what a slow one or one that stands still holds up, and what a
// link says of its rails.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/transport/contract/contract_traffic.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/memory/memory.h"
#include "transport/transport.h"
#include "transport/verbs/verbs.h"

namespace annulus {
namespace {

constexpr int kSlots = 8;
constexpr size_t kSlotBytes = 256 * 1024;

class VerbsRailsTest : public ::testing::Test {
 protected:
  ~VerbsRailsTest() override {
    link_.reset();
    SimulatedVerbs::SetMachine({});
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_EQ(counts.not_ready, 0u) << "a message found no receive: credits are wrong";
    EXPECT_EQ(counts.overruns, 0u);
    EXPECT_EQ(counts.refused_posts, 0u);
    EXPECT_EQ(counts.busy, 0u) << "something was destroyed before what uses it";
    EXPECT_EQ(counts.objects, 0u) << "something was not given back to the provider";
  }

  void Open(const SimulatedMachine& machine = {.devices = 2}) {
    SimulatedVerbs::SetMachine(machine);
    SimulatedVerbs::Seed(1);
    const auto make = [](TransportConfig config) {
      config.settings.Set("verbs_device", std::string("sim0,sim1"));
      return CreateVerbsTransportOver(SimulatedVerbs::Api(), "", std::move(config));
    };
    link_ = TransportLink::Open(make, nullptr, {.slot_bytes = kSlotBytes, .slots = kSlots});
    ASSERT_NE(link_, nullptr);
    before_ = SimulatedVerbs::Counts();
  }
  Endpoint& end(int side) { return link_->end(side); }
  // What a device has sent since the link was opened, in slices.
  double SlicesOf(size_t device) const {
    const uint64_t bytes = SimulatedVerbs::Counts().device_bytes[device] - before_.device_bytes[device];
    return static_cast<double>(bytes) / kSlotBytes;
  }

  // Drives both ends until `done`; fails when that takes too long.
  template <class Done>
  void Drive(const Done& done) {
    for (const Deadline deadline = DeadlineAfter(kContractPatience); !done();) {
      ASSERT_LT(Now(), deadline) << "a hang";
      bool moved = false;
      for (const int side : {0, 1}) {
        const Status status = end(side).Progress(&moved);
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
      if (!moved) link_->Pass();
    }
  }
  // Whether the devices have carried out what they can and nothing has come of it for a while; asked once a round.
  bool IsQuiet() {
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    const uint64_t now = counts.requests + counts.completions;
    quiet_rounds_ = now == seen_ && counts.waiting == 0 ? quiet_rounds_ + 1 : 0;
    seen_ = now;
    return quiet_rounds_ > 50;
  }
  // Sends so many whole slots from side 0, as many at a time as there are slots.
  void Stream(size_t slices) {
    std::array<Send, kSlots> sends;
    std::array<Recv, kSlots> recvs;
    size_t sent = 0;
    size_t posted = 0;
    size_t received = 0;
    size_t expected = 0;
    Drive([&] {
      if (IsQuiet()) SimulatedVerbs::Allow(1);
      while (sent < posted && sends[sent % kSlots].code == Code::kOk) ++sent;
      while (received < expected && recvs[received % kSlots].code == Code::kOk) {
        EXPECT_EQ(recvs[received % kSlots].tag.words[0], received);
        end(1).Release(&recvs[received++ % kSlots]);
      }
      for (std::byte* slot = nullptr;
           posted < slices && posted - sent < kSlots && end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok();) {
        Send& send = sends[posted % kSlots];
        send = Send();
        send.tag.words[0] = posted++;
        send.data = slot;
        send.bytes = send.ready = kSlotBytes;
        EXPECT_TRUE(end(0).PostSend(&send).ok());
      }
      while (expected < slices && expected - received < kSlots) {
        Recv& recv = recvs[expected++ % kSlots];
        recv = Recv();
        recv.capacity = kSlotBytes;
        EXPECT_TRUE(end(1).PostRecv(&recv).ok());
      }
      return sent == slices && received == slices;
    });
  }
  void Post(Send* send, uint32_t bytes = kSlotBytes) {
    std::byte* slot = nullptr;
    ASSERT_TRUE(end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
    send->data = slot;
    send->bytes = send->ready = bytes;
    ASSERT_TRUE(end(0).PostSend(send).ok());
  }

  std::unique_ptr<ContractLink> link_;
  SimulatedCounts before_;
  uint64_t seen_ = 0;
  int quiet_rounds_ = 0;
};

TEST_F(VerbsRailsTest, BothRailsCarrySlices) {
  Open();
  Stream(200);
  EXPECT_GT(SlicesOf(0), 0.25 * (SlicesOf(0) + SlicesOf(1)));
  EXPECT_GT(SlicesOf(1), 0.25 * (SlicesOf(0) + SlicesOf(1)));
}

TEST_F(VerbsRailsTest, SmallSlicesStayOnTheFirstRailWhileItHasRoom) {
  Open();
  for (int i = 0; i < 100; ++i) {
    Send send;
    ASSERT_NO_FATAL_FAILURE(Post(&send, 150));
    Recv recv;
    recv.capacity = kSlotBytes;
    ASSERT_TRUE(end(1).PostRecv(&recv).ok());
    Drive([&] { return recv.code == Code::kOk && send.code == Code::kOk; });
    end(1).Release(&recv);
  }
  EXPECT_GT(SlicesOf(0), 0);
  EXPECT_EQ(SlicesOf(1), 0);
}

// It carries out a request only when the other rail has nothing more to do. A static split would give it half. What
// comes behind a slice on the slow rail waits for it, so of as many slices as there are slots it gets some two.
TEST_F(VerbsRailsTest, ASlowRailGetsLittle) {
  for (const int slow : {0, 1}) {
    Open({.devices = 2, .slow_device = slow, .slowness = 0});
    Stream(100);
    const auto device = static_cast<size_t>(slow);
    EXPECT_LT(SlicesOf(device), 0.75 * SlicesOf(1 - device)) << "device " << slow;
    EXPECT_GT(SlicesOf(device), 10);
    std::printf("%.1f and %.1f slices\n", SlicesOf(device), SlicesOf(1 - device));
  }
}

// What the other rail brings waits at the receiver, and is there once the first one goes on.
TEST_F(VerbsRailsTest, ARailThatStandsStillHoldsUpNoMoreThanTheOrderDemands) {
  Open({.devices = 2, .slow_device = 0, .slowness = 0});
  std::array<Send, kSlots> sends;
  for (Send& send : sends) ASSERT_NO_FATAL_FAILURE(Post(&send));
  std::array<Recv, kSlots> recvs;
  for (Recv& recv : recvs) {
    recv.capacity = kSlotBytes;
    ASSERT_TRUE(end(1).PostRecv(&recv).ok());
  }
  Drive([&] { return IsQuiet(); });
  EXPECT_EQ(SlicesOf(0), 0);
  EXPECT_GE(SlicesOf(1), kSlots - 2) << "the one that stands still has two";
  EXPECT_EQ(recvs[0].code, Code::kInProgress);
  const uint64_t carried = SimulatedVerbs::Counts().device_bytes[1];
  SimulatedVerbs::SetMachine({.devices = 2});
  Drive([&] { return recvs.back().code == Code::kOk && sends.back().code == Code::kOk; });
  EXPECT_LT(SimulatedVerbs::Counts().device_bytes[1] - carried, kSlotBytes) << "nothing was sent twice";
  for (Recv& recv : recvs) end(1).Release(&recv);
}

// The end that tells of them has a slice under way on the rail that stands still, over which something came last.
TEST_F(VerbsRailsTest, ReturnedSlotsTakeTheRailWithLessUnderWay) {
  Open();
  std::array<Send, 2 * kSlots> sends;
  std::array<Recv, 2 * kSlots> recvs;
  for (size_t i = 0; i < kSlots; ++i) {
    recvs[i].capacity = kSlotBytes;
    ASSERT_TRUE(end(1).PostRecv(&recvs[i]).ok());
  }
  for (size_t i = 0; i + 1 < kSlots; ++i) ASSERT_NO_FATAL_FAILURE(Post(&sends[i]));
  Drive([&] { return recvs[kSlots - 2].code == Code::kOk && sends[kSlots - 2].code == Code::kOk; });
  ASSERT_NO_FATAL_FAILURE(Post(&sends[kSlots - 1], 150));  // Takes the first rail, since both are idle.
  Drive([&] { return recvs[kSlots - 1].code == Code::kOk && sends[kSlots - 1].code == Code::kOk; });
  SimulatedVerbs::SetMachine({.devices = 2, .slow_device = 0, .slowness = 0});
  Send back;
  Recv back_recv;
  back_recv.capacity = kSlotBytes;
  ASSERT_TRUE(end(0).PostRecv(&back_recv).ok());
  std::byte* slot = nullptr;
  ASSERT_TRUE(end(1).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  back.data = slot;
  back.bytes = back.ready = kSlotBytes;
  ASSERT_TRUE(end(1).PostSend(&back).ok());
  Drive([&] { return IsQuiet(); });
  const double before = SlicesOf(1);
  for (size_t i = 0; i < kSlots; ++i) end(1).Release(&recvs[i]);
  for (size_t i = kSlots; i < 2 * kSlots; ++i) {
    ASSERT_NO_FATAL_FAILURE(Post(&sends[i]));
    recvs[i].capacity = kSlotBytes;
    ASSERT_TRUE(end(1).PostRecv(&recvs[i]).ok());
  }
  quiet_rounds_ = 0;
  Drive([&] { return IsQuiet(); });
  EXPECT_GE(SlicesOf(1) - before, kSlots - 2) << "the sender has not heard of the slots";
  SimulatedVerbs::SetMachine({.devices = 2});
  Drive(
      [&] { return recvs.back().code == Code::kOk && sends.back().code == Code::kOk && back_recv.code == Code::kOk; });
  Drive([&] { return back.code == Code::kOk; });
  for (size_t i = kSlots; i < 2 * kSlots; ++i) end(1).Release(&recvs[i]);
  end(0).Release(&back_recv);
}

// A slice that has begun stays on its rail.
TEST_F(VerbsRailsTest, PartsOfASliceTakeOneRail) {
  Open();
  std::byte* slot = nullptr;
  ASSERT_TRUE(end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  Send send;
  send.data = slot;
  send.bytes = kSlotBytes;
  send.ready = kSlotBytes / 4;
  ASSERT_TRUE(end(0).PostSend(&send).ok());
  Recv recv;
  recv.capacity = kSlotBytes;
  ASSERT_TRUE(end(1).PostRecv(&recv).ok());
  for (uint32_t ready = kSlotBytes / 2; ready <= kSlotBytes; ready += kSlotBytes / 4) {
    Drive([&] { return recv.arrived == ready - kSlotBytes / 4; });
    send.ready = ready;
  }
  Drive([&] { return recv.code == Code::kOk && send.code == Code::kOk; });
  EXPECT_EQ(SlicesOf(1), 0);
  end(1).Release(&recv);
}

TEST_F(VerbsRailsTest, RegisteredMemoryIsReadByBothDevices) {
  Open();
  void* memory = nullptr;
  ASSERT_TRUE(TestRegistry().Allocate(kSlots * kSlotBytes, &memory).ok());
  auto* const data = static_cast<std::byte*>(memory);
  for (size_t i = 0; i < kSlots * kSlotBytes; ++i) data[i] = static_cast<std::byte>(i * 7 + i / kSlotBytes);
  std::array<Send, kSlots> sends;
  std::array<Recv, kSlots> recvs;
  for (size_t i = 0; i < kSlots; ++i) {
    recvs[i].capacity = kSlotBytes;
    ASSERT_TRUE(end(1).PostRecv(&recvs[i]).ok());
    sends[i].data = data + i * kSlotBytes;
    sends[i].bytes = sends[i].ready = kSlotBytes;
    ASSERT_TRUE(end(0).PostSend(&sends[i]).ok());
  }
  Drive([&] { return recvs.back().code == Code::kOk && sends.back().code == Code::kOk; });
  for (size_t i = 0; i < kSlots; ++i) {
    EXPECT_EQ(std::memcmp(recvs[i].data, data + i * kSlotBytes, kSlotBytes), 0) << i;
    end(1).Release(&recvs[i]);
  }
  EXPECT_EQ(SimulatedVerbs::Counts().read_in_place - before_.read_in_place, kSlots * kSlotBytes);
  EXPECT_GT(SlicesOf(0), 1);
  EXPECT_GT(SlicesOf(1), 1);
  EXPECT_TRUE(TestRegistry().Free(memory).ok());
}

TEST_F(VerbsRailsTest, ALinkNamesItsRails) {
  Open();
  EXPECT_EQ(end(0).Describe(),
            "verbs sim0, port 1, RoCE v2 127.0.0.1 to 127.0.0.1 and sim1, port 1, RoCE v2 127.0.1.1 to 127.0.1.1, each "
            "way 8 slots of 262144 bytes");
}

}  // namespace
}  // namespace annulus
