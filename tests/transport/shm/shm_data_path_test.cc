// Moving slices through shared memory allocates nothing, be they small or large.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/transport/allocation_counter.h"
#include "tests/transport/shm/shm_pair.h"

namespace annulus {
namespace {

// One slice from rank 0 to rank 1; false when something did not go as it should.
bool Pass(Endpoint& from, Endpoint& to, uint32_t bytes) {
  Recv recv;
  recv.capacity = bytes;
  Send send;
  send.bytes = send.ready = bytes;
  std::byte* slot = nullptr;
  bool moved = false;
  if (!to.PostRecv(&recv).ok() || !from.AcquireSlot(Endpoint::kWholeSlot, &slot).ok()) return false;
  std::memset(slot, 7, bytes);
  send.data = slot;
  if (!from.PostSend(&send).ok() || !from.Progress(&moved).ok() || !to.Progress(&moved).ok()) return false;
  if (send.code != Code::kOk || recv.code != Code::kOk || recv.data[bytes - 1] != std::byte{7}) return false;
  to.Release(&recv);
  return true;
}

TEST(ShmDataPath, MovingSlicesAllocatesNothing) {
  ShmPair pair;
  ASSERT_TRUE(pair.Make({.slot_bytes = 4096, .slots = 4}));
  for (const uint32_t bytes : {8u, 200u, 300u, 4096u}) {
    const size_t before = AllocationsOfThisThread();
    bool passed = true;
    for (int i = 0; i < 2000; ++i) passed &= Pass(pair.end(0), pair.end(1), bytes);
    const size_t after = AllocationsOfThisThread();
    EXPECT_TRUE(passed) << bytes;
    EXPECT_EQ(after - before, 0u) << bytes;
  }
}

}  // namespace
}  // namespace annulus
