// ShmEndpoint: what only shared memory has. Distrust of the memory, inline slices, the order of slots, the bell.
#include "transport/shm/shm_endpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "tests/transport/contract/contract_traffic.h"
#include "tests/transport/shm/shm_pair.h"

namespace annulus {
namespace {

constexpr uint32_t kInline = ShmDescriptor::kPayloadBytes;

class ShmEndpointTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(pair_.Make({.slot_bytes = 4096, .slots = 4})); }

  Endpoint& end(int side) { return pair_.end(side); }
  ShmDirection shared(int side) { return pair_.mapping().direction(side); }
  Status Progress(int side) {
    bool moved = false;
    return end(side).Progress(&moved);
  }
  std::byte* Slot(int side) {
    std::byte* slot = nullptr;
    return end(side).AcquireSlot(Endpoint::kWholeSlot, &slot).ok() ? slot : nullptr;
  }
  Send* Post(int side, uint32_t bytes, uint64_t tag = 0) {
    Send* send = &sends_.emplace_back();
    send->tag.words[0] = tag;
    send->data = Slot(side);
    send->bytes = send->ready = bytes;
    EXPECT_TRUE(send->data != nullptr && end(side).PostSend(send).ok());
    return send;
  }
  Recv* Expect(int side) {
    Recv* recv = &recvs_.emplace_back();
    recv->capacity = 4096;
    EXPECT_TRUE(end(side).PostRecv(recv).ok());
    return recv;
  }
  // Sends a slice from rank 0, spoils its descriptor, and expects rank 1 to refuse it by naming `field`.
  void ExpectRefused(const std::string& field, uint32_t bytes, const std::function<void(ShmDescriptor*)>& spoil) {
    ASSERT_TRUE(pair_.Make({.slot_bytes = 4096, .slots = 4}));
    Recv* recv = Expect(1);
    Post(0, bytes);
    spoil(&shared(0).ring[0]);
    const Status status = Progress(1);
    EXPECT_EQ(status.code(), Code::kProtocol) << status.ToString();
    EXPECT_EQ(status.peer(), 0);
    EXPECT_NE(status.message().find("'" + field + "'"), std::string::npos) << status.ToString();
    EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status.ToString();
    EXPECT_EQ(recv->code, Code::kProtocol);
    EXPECT_EQ(recv->arrived, 0u);
  }
  // Until rank `side`, spinning, reports an error.
  Status SpinUntilError(int side) {
    const Deadline deadline = DeadlineAfter(kContractPatience);
    Status status;
    while (status.ok() && Now() < deadline) status = Progress(side);
    return status;
  }

  std::deque<Send> sends_;
  std::deque<Recv> recvs_;
  ShmPair pair_;
};

TEST_F(ShmEndpointTest, ABrokenDescriptorBreaksTheLinkAndIsNamed) {
  ExpectRefused("slot", 1000, [](ShmDescriptor* slice) { slice->slot = 4; });
  ExpectRefused("slot", 1000, [](ShmDescriptor* slice) { slice->slot = 0xfffffffe; });
  ExpectRefused("bytes", 1000, [](ShmDescriptor* slice) { slice->bytes = 4097; });
  ExpectRefused("bytes", 1000, [](ShmDescriptor* slice) { slice->bytes = 0xffffffff; });
  ExpectRefused("bytes", 10, [](ShmDescriptor* slice) { slice->bytes = kInline + 1; });
  // In a slot of 4096 bytes: not a multiple of the step, behind the last place for it, and so that a sum overflows.
  for (const ShmBegin begin :
       {ShmBegin{64}, ShmBegin{3200}, ShmBegin{4096}, ~ShmBegin{0} / kShmBeginStep * kShmBeginStep}) {
    ExpectRefused("beginning in a slot", 1000,
                  [begin](ShmDescriptor* slice) { std::memcpy(slice->payload, &begin, sizeof(begin)); });
  }
  ExpectRefused("ticket", 1000, [](ShmDescriptor* slice) { slice->ticket = 2; });
  ExpectRefused("ticket", 1000, [](ShmDescriptor* slice) { slice->ticket = ~uint64_t{0}; });
}

TEST_F(ShmEndpointTest, TheOtherEndLearnsThatItsSliceWasRefused) {
  ExpectRefused("slot", 1000, [](ShmDescriptor* slice) { slice->slot = 77; });
  const Status status = SpinUntilError(0);
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_NE(status.message().find("protocol error"), std::string::npos) << status.ToString();
}

TEST_F(ShmEndpointTest, ASlotThatTheReceiverHoldsIsNotTakenTwice) {
  Recv* first = Expect(1);
  Recv* second = Expect(1);
  Post(0, 1000);
  ASSERT_TRUE(Progress(1).ok());
  ASSERT_EQ(first->code, Code::kOk);
  Post(0, 1000);
  shared(0).ring[1].slot = shared(0).ring[0].slot.load();
  EXPECT_EQ(Progress(1).code(), Code::kProtocol);
  EXPECT_EQ(second->code, Code::kProtocol);
}

TEST_F(ShmEndpointTest, ASlotThatWasNotSentCannotBeReturned) {
  for (const uint64_t slot : {0ull, 4ull, 0xffffffffull}) {
    ASSERT_TRUE(pair_.Make({.slot_bytes = 4096, .slots = 4}));
    shared(0).returns[0] = (uint64_t{1} << 32) | slot;
    // It is found once half of the slots are lent.
    std::byte* lent = nullptr;
    for (int slots = 0; slots < 2; ++slots) ASSERT_TRUE(end(0).AcquireSlot(Endpoint::kWholeSlot, &lent).ok());
    EXPECT_TRUE(end(0).AcquireSlot(Endpoint::kWholeSlot, &lent).would_block());
    EXPECT_FALSE(end(0).Arm()) << "there is an error to report";
    const Status status = Progress(0);
    EXPECT_EQ(status.code(), Code::kProtocol);
    EXPECT_NE(status.message().find("'returned slot'"), std::string::npos) << status.ToString();
  }
}

TEST_F(ShmEndpointTest, ACounterThatRunsAheadIsRefused) {
  shared(0).consumed->store(1000);
  Status status;
  for (uint64_t i = 0; i <= shared(0).ring_entries && status.ok(); ++i) {
    Post(0, 8);
    status = Progress(0);
  }
  EXPECT_EQ(status.code(), Code::kProtocol);
  EXPECT_NE(status.message().find("'consumed'"), std::string::npos) << status.ToString();
}

TEST_F(ShmEndpointTest, SmallSlicesKeepTheirSlotAtHomeAndArriveInPrivateMemory) {
  for (const uint32_t bytes : {0u, 1u, 8u, kInline, kInline + 1}) {
    std::byte* const slot = Slot(0);
    Send* send = &sends_.emplace_back();
    send->data = slot;
    send->bytes = send->ready = bytes;
    std::memset(slot, static_cast<int>(bytes), bytes);
    ASSERT_TRUE(end(0).PostSend(send).ok());
    ASSERT_TRUE(Progress(0).ok());
    ASSERT_EQ(send->code, Code::kOk);
    std::byte* const again = Slot(0);
    EXPECT_EQ(again == slot, bytes <= kInline) << bytes << ": a slot that stayed at home is lent again";
    Recv* recv = Expect(1);
    ASSERT_TRUE(Progress(1).ok());
    ASSERT_EQ(recv->code, Code::kOk);
    const ShmDirection memory = shared(0);
    const bool in_slots = recv->data >= memory.slots && recv->data < memory.slots + 4 * memory.slot_stride;
    EXPECT_EQ(in_slots, bytes > kInline) << bytes;
    for (uint32_t i = 0; i < bytes; ++i) ASSERT_EQ(recv->data[i], static_cast<std::byte>(bytes));
    end(1).Release(recv);
    ASSERT_TRUE(pair_.Make({.slot_bytes = 4096, .slots = 4}));
  }
}

TEST_F(ShmEndpointTest, SlotsAreLentInTheOrderInWhichTheyCameBack) {
  std::vector<const std::byte*> sent;
  std::vector<Recv*> recvs;
  for (int i = 0; i < 4; ++i) {
    sent.push_back(Post(0, 1000)->data);
    recvs.push_back(Expect(1));
  }
  ASSERT_TRUE(Progress(0).ok() && Progress(1).ok());
  for (const int i : {1, 3, 0, 2}) end(1).Release(recvs[i]);
  for (const int i : {1, 3, 0, 2}) EXPECT_EQ(Slot(0), sent[i]);
}

TEST_F(ShmEndpointTest, SlotsAreStreamedAsTheSettingSays) {
  EXPECT_FALSE(end(0).shortcuts().in_place->StreamsSlots()) << "chosen, and nothing is known of the peer yet";
  ASSERT_TRUE(pair_.Make({.slot_bytes = 4096, .slots = 4}, SlotStores::kStreaming));
  EXPECT_TRUE(end(0).shortcuts().in_place->StreamsSlots());
  ASSERT_TRUE(pair_.Make({.slot_bytes = 4096, .slots = 4}, SlotStores::kPlain));
  EXPECT_FALSE(end(0).shortcuts().in_place->StreamsSlots());
}

TEST_F(ShmEndpointTest, SmallSlicesBeyondTheRingWaitAndKeepTheirOrder) {
  const uint64_t ring = shared(0).ring_entries;
  const uint64_t count = 10 * ring;
  uint64_t sent = 0;
  uint64_t received = 0;
  const Deadline deadline = DeadlineAfter(kContractPatience);
  while (sent < ring) {  // Fills the ring while nobody receives.
    Post(0, 8, sent++);
    ASSERT_TRUE(Progress(0).ok());
  }
  Send* const waiting = Post(0, 8, sent++);
  ASSERT_TRUE(Progress(0).ok());
  EXPECT_EQ(waiting->code, Code::kInProgress) << "the ring is full";
  while (received < count) {
    ASSERT_LT(Now(), deadline) << sent << " sent, " << received << " received";
    if (sent < count && sends_.back().code == Code::kOk) Post(0, 8, sent++);
    Recv* const recv = Expect(1);
    ASSERT_TRUE(Progress(0).ok() && Progress(1).ok());
    ASSERT_EQ(recv->code, Code::kOk);
    ASSERT_EQ(recv->tag.words[0], received++);
    end(1).Release(recv);
  }
  EXPECT_EQ(waiting->code, Code::kOk);
}

TEST_F(ShmEndpointTest, OnlyLentSlotsAreSentAndOnlyOnce) {
  Send* posted = Post(0, 1000);
  Send again = *posted;
  EXPECT_EQ(end(0).PostSend(&again).code(), Code::kInvalidArgument) << "already posted";
  std::byte elsewhere[64];
  Send send;
  send.data = elsewhere;
  EXPECT_EQ(end(0).PostSend(&send).code(), Code::kInvalidArgument);
  std::byte* const slot = Slot(0);
  send.data = slot + 64;
  EXPECT_EQ(end(0).PostSend(&send).code(), Code::kInvalidArgument) << "not a slot's beginning";
  send.data = slot;
  send.bytes = send.ready = 4097;
  EXPECT_EQ(end(0).PostSend(&send).code(), Code::kInvalidArgument) << "larger than a slot";
  send.bytes = 10;
  send.ready = 11;
  EXPECT_EQ(end(0).PostSend(&send).code(), Code::kInvalidArgument) << "more ready than there is";
  send.ready = 10;
  EXPECT_TRUE(end(0).PostSend(&send).ok());
  end(0).Close();
}

TEST_F(ShmEndpointTest, DescribeAndErrorsNameTheRankAndItsProcess) {
  const std::string process = "process " + std::to_string(getpid());
  EXPECT_NE(end(0).Describe().find("rank 1 (" + process), std::string::npos) << end(0).Describe();
  pair_.Sever(1);
  const Status died = SpinUntilError(0);
  EXPECT_NE(died.message().find("rank 1 (" + process + ") died"), std::string::npos) << died.ToString();
  ASSERT_TRUE(pair_.Make({}));
  end(1).Close();
  const Status closed = SpinUntilError(0);
  EXPECT_NE(closed.message().find("rank 1 (" + process + ") closed"), std::string::npos) << closed.ToString();
}

TEST_F(ShmEndpointTest, NoSlotCanBeAwaitedFromAPeerThatIsGone) {
  Post(1, 1000);  // Undelivered, so rank 0 has no error to tell yet.
  std::vector<std::byte*> slots;
  for (int i = 0; i < 4; ++i) Post(0, 1000);
  ASSERT_TRUE(Progress(0).ok());
  pair_.Sever(1);
  const Deadline deadline = DeadlineAfter(kContractPatience);
  std::byte* slot = nullptr;
  Status acquired = Status::WouldBlock();
  while (acquired.would_block() && Now() < deadline) {
    ASSERT_TRUE(Progress(0).ok());
    acquired = end(0).AcquireSlot(Endpoint::kWholeSlot, &slot);
  }
  EXPECT_EQ(acquired.code(), Code::kPeerLost);
  Recv* recv = Expect(0);
  ASSERT_TRUE(Progress(0).ok());
  EXPECT_EQ(recv->code, Code::kOk) << "what had arrived is still delivered";
  EXPECT_EQ(SpinUntilError(0).code(), Code::kPeerLost);
}

TEST_F(ShmEndpointTest, NothingIsSentToAPeerThatIsGoneWhileItsLastSliceWaits) {
  Post(1, 1000);  // Undelivered, so rank 0 has no error to tell yet.
  Send* const send = &sends_.emplace_back();
  send->data = Slot(0);
  send->bytes = 1000;
  send->ready = 500;
  ASSERT_TRUE(end(0).PostSend(send).ok());
  std::byte* const slot = Slot(0);
  pair_.Sever(1);
  const Deadline deadline = DeadlineAfter(kContractPatience);
  while (send->code == Code::kInProgress && Now() < deadline) ASSERT_TRUE(Progress(0).ok());
  EXPECT_EQ(send->code, Code::kPeerLost);
  // There is room for more, but what follows a slice that is lost is lost too.
  send->data = slot;
  send->ready = send->bytes;
  ASSERT_TRUE(end(0).PostSend(send).ok());
  EXPECT_FALSE(end(0).Arm()) << "there is something to fail";
  ASSERT_TRUE(Progress(0).ok());
  EXPECT_EQ(send->code, Code::kPeerLost);
  EXPECT_EQ(end(0).shortcuts().short_path->SendCopy({}, slot, 8).code(), Code::kPeerLost);
  EXPECT_TRUE(end(0).Arm()) << "nothing is left to do before a receive is posted";
  Recv* const recv = Expect(0);
  ASSERT_TRUE(Progress(0).ok());
  EXPECT_EQ(recv->code, Code::kOk) << "what had arrived is still delivered";
  EXPECT_EQ(SpinUntilError(0).code(), Code::kPeerLost);
}

// One end of the stress test: spins a random while, then sleeps; the smallest windows make every wait count.
void SpinOrSleep(Endpoint& endpoint, Reactor& reactor, const Plan& out, const Plan& in, uint64_t seed) {
  SliceTalker talker(&endpoint, out);
  SliceListener listener(&endpoint, in);
  std::mt19937_64 random(seed);
  const Deadline deadline = DeadlineAfter(3 * kContractPatience);
  uint64_t spins = 0;
  while (!(talker.done() && listener.done())) {
    bool moved = false;
    const Status status = endpoint.Progress(&moved);
    const bool worked = static_cast<int>(talker.Step()) + static_cast<int>(listener.Step()) != 0;
    if (!status.ok() || talker.broken() || listener.broken() || Now() > deadline) {
      ADD_FAILURE() << "rank " << 1 - endpoint.peer() << ": " << status.ToString() << ", or out of time";
      break;
    }
    if (moved || worked) spins = random() % 3 == 0 ? 0 : random() % 200;
    if (moved || worked || spins-- > 0) continue;
    spins = 0;
    if (endpoint.Arm()) reactor.WaitUntil(deadline);
  }
  if (!(talker.done() && listener.done())) endpoint.Close();
}

TEST_F(ShmEndpointTest, RandomSpinsAndSleepsLoseNoWakeUp) {
  for (const int window : {1, 3}) {
    ASSERT_TRUE(pair_.Make({.slot_bytes = 512, .slots = 2}));
    const Plan there{.seed = 61, .slices = 15000, .max_bytes = 300, .window = window};
    const Plan back{.seed = 62, .slices = 15000, .max_bytes = 300, .window = window, .gradual = true};
    std::thread other([&] { SpinOrSleep(end(1), *pair_.reactor(1), back, there, 1); });
    SpinOrSleep(end(0), *pair_.reactor(0), there, back, 2);
    other.join();
    if (HasFailure()) return;
  }
}

// Only what a peer has read tells how far it is.
TEST(ShmSender, TimesWritingOnlyToWhatThePeerHasRead) {
  constexpr size_t kBytes = 4096;
  std::unique_ptr<ShmMapping> mapping;
  ASSERT_TRUE(ShmMapping::Create(2, 2 * kBytes, &mapping).ok());
  ShmOwnRegions own_regions(nullptr, [](const ShmNotice&, int) { return true; });
  ShmPeerRegions peer_regions;
  ShmSender sender(mapping->direction(0), &own_regions);
  ShmReceiver receiver(mapping->direction(0), &peer_regions, [] { return false; });
  ShmFault fault;
  for (const uint32_t bytes : {uint32_t{kBytes}, uint32_t{kBytes / 2}}) {
    std::byte* const slot = sender.Acquire(kBytes, ShmPlacing::kAtBeginning, &fault);
    ASSERT_NE(slot, nullptr);
    EXPECT_EQ(sender.TimeRewrite(slot, kBytes), 0) << "never at the peer, or with less";
    Send send;
    send.data = slot;
    send.bytes = send.ready = bytes;
    ASSERT_TRUE(sender.Post(&send, &fault).ok());
    ASSERT_TRUE(sender.Publish(&fault));
    Recv recv;
    recv.capacity = bytes;
    bool freed = false;
    ASSERT_TRUE(receiver.Post(&recv));
    ASSERT_TRUE(receiver.Advance(&freed, &fault));
    receiver.Release(&recv);
    ASSERT_TRUE(sender.CollectReturns(&fault));
    bool copied = false;
    ASSERT_TRUE(sender.Complete(&copied, &fault));
    EXPECT_FALSE(copied);
  }
  // The two slots come in turn: first the one of which the peer has read enough.
  std::byte* const read = sender.Acquire(kBytes, ShmPlacing::kAtBeginning, &fault);
  EXPECT_GT(sender.TimeRewrite(read, kBytes), 0);
  std::byte* const half = sender.Acquire(kBytes, ShmPlacing::kAtBeginning, &fault);
  EXPECT_NE(read, half);
  EXPECT_EQ(sender.TimeRewrite(half, kBytes), 0);
  EXPECT_GT(sender.TimeRewrite(half, kBytes / 2), 0);
}

}  // namespace
}  // namespace annulus
