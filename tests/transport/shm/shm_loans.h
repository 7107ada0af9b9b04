// ShmLoansTest: two ends of shared memory, of which one lends its memory to the other.
//
// Threads: as ShmPair.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <vector>

#include "tests/transport/contract/contract_traffic.h"
#include "tests/transport/shm/shm_pair.h"

namespace annulus {

constexpr uint32_t kBytes = 32 * 1024;
constexpr uint32_t kSlotBytes = 64 * 1024;
constexpr int kSlots = 4;

inline std::vector<std::byte> Data(int number) {
  std::vector<std::byte> data(kBytes);
  for (uint32_t i = 0; i < kBytes; ++i) data[i] = static_cast<std::byte>(number * 7 + i * 3 + i / 256);
  return data;
}

class ShmLoansTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Plain stores, so that nobody looks how near the peer is: near ones do not lend.
    ASSERT_TRUE(pair_.Make({.slot_bytes = kSlotBytes, .slots = kSlots}, SlotStores::kPlain));
    ASSERT_TRUE(lands()) << "a process may read its own memory";
  }

  Endpoint& end(int side) { return pair_.end(side); }
  InPlace& in_place(int side) { return *end(side).shortcuts().in_place; }
  bool lends() { return in_place(0).Lends(memory_.data(), kBytes); }
  bool lands() { return MayLand(&end(1), MemoryKind::kHost, landing_.data(), kBytes); }
  Status Progress(int side) {
    bool moved = false;
    return end(side).Progress(&moved);
  }
  bool SpinUntil(const std::function<bool()>& over, std::initializer_list<int> sides) {
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while (!over() && Now() < deadline) {
      for (const int side : sides) static_cast<void>(Progress(side));
    }
    return over();
  }
  // Rank 0 lends its memory.
  Send* Post(int number) {
    std::ranges::copy(Data(number), memory_.begin());  // In its place: others may be under way.
    EXPECT_TRUE(lends());
    Send* const send = &sends_.emplace_back();
    send->tag.words[0] = static_cast<uint64_t>(number);
    send->data = memory_.data();
    send->bytes = send->ready = kBytes;
    const Status status = end(0).PostSend(send);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return send;
  }
  Recv* Expect(bool lands) {
    Recv* const recv = &recvs_.emplace_back();
    recv->landing = lands ? landing_.data() : nullptr;
    recv->capacity = kBytes;
    EXPECT_TRUE(end(1).PostRecv(recv).ok());
    return recv;
  }
  void ExpectData(Recv* recv, int number) {
    ASSERT_EQ(recv->code, Code::kOk);
    EXPECT_EQ(recv->tag.words[0], static_cast<uint64_t>(number));
    ASSERT_EQ(recv->arrived, kBytes);
    EXPECT_EQ(std::memcmp(recv->data, Data(number).data(), kBytes), 0);
    if (recv->data != recv->landing) end(1).Release(recv);
  }
  // After Arm.
  void ExpectBell(int side) {
    const Deadline deadline = DeadlineAfter(kContractPatience);
    pair_.reactor(side)->WaitUntil(deadline);
    EXPECT_LT(Now(), deadline) << "nobody rang";
  }
  ShmDescriptor& descriptor() { return pair_.mapping().direction(0).ring[0]; }
  ShmClaim& claim() { return pair_.mapping().direction(0).claims[descriptor().slot.load() & ~kShmLent]; }

  ShmPair pair_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> landing_ = std::vector<std::byte>(kBytes);
  std::deque<Send> sends_;
  std::deque<Recv> recvs_;
};

}  // namespace annulus
