// Contract tests of links that end: close, death of the peer, oversized slices, and which error is told.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/transport/contract/contract_fixture.h"

namespace annulus {
namespace {

// What every later call on a broken or closed endpoint must return.
void ExpectEveryCallReturns(Endpoint& endpoint, Code code, Send* send, Recv* recv) {
  std::byte* slot = nullptr;
  bool moved = false;
  EXPECT_EQ(endpoint.AcquireSlot(Endpoint::kWholeSlot, &slot).code(), code);
  EXPECT_EQ(endpoint.PostSend(send).code(), code);
  EXPECT_EQ(endpoint.PostRecv(recv).code(), code);
  EXPECT_EQ(endpoint.Progress(&moved).code(), code);
}

TEST_P(EndpointContract, CloseAbortsWhatIsPending) {
  Recv* first = MustRecv(0);
  Recv* second = MustRecv(0);
  Send* send = MustSend(0, SmallPlan(), 0);
  ASSERT_TRUE(first != nullptr && second != nullptr && send != nullptr);
  (void)end(0).Close();  // Whatever it says of what was sent before.
  EXPECT_EQ(first->code, Code::kAborted);
  EXPECT_EQ(second->code, Code::kAborted);
  EXPECT_EQ(send->code, Code::kAborted);
}

TEST_P(EndpointContract, CloseIsIdempotentAndPostAfterCloseReturnsAborted) {
  std::byte* slot = nullptr;
  ASSERT_TRUE(end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  Send* send = NewSend();
  send->data = slot;
  CloseWholly(end(0));
  CloseWholly(end(0));
  ExpectEveryCallReturns(end(0), Code::kAborted, send, NewRecv(slot_bytes()));
  CloseWholly(end(0));
}

TEST_P(EndpointContract, CloseOfASaturatedLinkIsBoundedInTime) {
  constexpr Nanoseconds kLongest = 5 * kSecond;
  const std::vector<Send*> sends = Saturate(end(0), &sends_, deadline_);
  const Nanoseconds start = Now();
  CloseWholly(end(0));
  EXPECT_LT(Now() - start, kLongest);
  for (Send* send : sends) EXPECT_TRUE(send->code == Code::kOk || send->code == Code::kAborted);
}

// Whoever has other links closes them meanwhile.
TEST_P(EndpointContract, ACloseThatIsNotOverHasEndedTheLink) {
  ASSERT_NE(MustSend(0, SmallPlan(), 0, 60), nullptr);
  ASSERT_TRUE(RoundsUntil([&] { return sends_.back().code == Code::kOk; }));
  (void)end(0).Close();
  ExpectEveryCallReturns(end(0), Code::kAborted, NewSend(), NewRecv(slot_bytes()));
  EXPECT_FALSE(end(0).Arm());
  CloseWholly(end(0));
  EXPECT_TRUE(end(0).Close());
}

TEST_P(EndpointContract, SlicesSentBeforeCloseArriveAndThenThePeerIsLost) {
  const Plan plan = SmallPlan();
  constexpr int kSlices = 2;
  std::vector<Send*> sends;
  // Small enough to be under way before anybody receives.
  for (int i = 0; i < kSlices; ++i) sends.push_back(MustSend(0, plan, i, 60 + i));
  ASSERT_EQ(std::count(sends.begin(), sends.end(), nullptr), 0);
  ASSERT_TRUE(RoundsUntil([&] { return sends.back()->code == Code::kOk; }));
  CloseWholly(end(0));
  gone_[0] = true;
  SomeRounds();  // The receiver is in no hurry; the error waits behind the data.
  std::vector<Recv*> recvs;
  for (int i = 0; i < kSlices; ++i) {
    recvs.push_back(MustRecv(1));
    ASSERT_NE(recvs.back(), nullptr) << "the error overtook the data";
  }
  ASSERT_TRUE(RoundsUntil([&] { return recvs.back()->code != Code::kInProgress; }));
  for (int i = 0; i < kSlices; ++i) {
    ASSERT_EQ(recvs[i]->code, Code::kOk) << i;
    EXPECT_EQ(plan.FirstWrong(i, recvs[i]->data, recvs[i]->bytes), -1);
    ReleaseIfHeld(1, recvs[i]);
  }
  ASSERT_TRUE(RoundsUntil([&] { return !outcome_[1].ok(); }));
  EXPECT_EQ(outcome_[1].code(), Code::kPeerLost) << outcome_[1].ToString();
  EXPECT_EQ(outcome_[1].peer(), 0);
}

TEST_P(EndpointContract, APeersCloseCompletesPendingReceives) {
  Recv* first = MustRecv(1);
  Recv* second = MustRecv(1);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  SomeRounds();
  CloseWholly(end(0));
  gone_[0] = true;
  ASSERT_TRUE(RoundsUntil([&] { return second->code != Code::kInProgress; }));
  EXPECT_EQ(first->code, Code::kPeerLost);
  EXPECT_EQ(second->code, Code::kPeerLost);
  EXPECT_EQ(outcome_[1].code(), Code::kPeerLost);
  EXPECT_EQ(outcome_[1].peer(), 0);
  EXPECT_FALSE(outcome_[1].message().empty());
}

TEST_P(EndpointContract, APeersDeathFailsBothDirections) {
  std::vector<Recv*> recvs = {MustRecv(1), MustRecv(1)};
  const std::vector<Send*> sends = Saturate(end(1), &sends_, deadline_);
  ASSERT_FALSE(sends.empty());
  Sever(0);
  auto pending = [](const auto* request) { return request->code == Code::kInProgress; };
  ASSERT_TRUE(RoundsUntil([&] {
    return std::none_of(recvs.begin(), recvs.end(), pending) && std::none_of(sends.begin(), sends.end(), pending);
  })) << "requests hang after the peer's death";
  bool failed = false;
  for (const Send* send : sends) {
    EXPECT_TRUE(send->code == Code::kOk || send->code == Code::kPeerLost) << CodeName(send->code);
    EXPECT_FALSE(failed && send->code == Code::kOk) << "success after an error";
    failed |= send->code != Code::kOk;
  }
  for (const Recv* recv : recvs) EXPECT_EQ(recv->code, Code::kPeerLost);
  ASSERT_TRUE(RoundsUntil([&] { return !outcome_[1].ok(); }));
  EXPECT_EQ(outcome_[1].code(), Code::kPeerLost);
  EXPECT_EQ(outcome_[1].peer(), 0);
}

// Nothing is received before that is over, so the peer's slice waits, and the link may live on for it.
TEST_P(EndpointContract, SendsToAPeerThatIsGoneEndThoughItsLastSliceIsNotReceived) {
  const Plan plan = SmallPlan();
  for (const bool closes : {true, false}) {
    SCOPED_TRACE(closes ? "it closes" : "it dies");
    sends_.clear();
    ASSERT_TRUE(Open({}));
    const Send* last = MustSend(0, plan, 0, 60);
    ASSERT_NE(last, nullptr);
    ASSERT_TRUE(RoundsUntil([&] { return last->code == Code::kOk; }));
    SomeRounds();
    void* memory = nullptr;
    ASSERT_TRUE(TestRegistry().Allocate(slot_bytes(), &memory).ok());
    Send* in_place = NewSend();
    in_place->data = static_cast<const std::byte*>(memory);
    in_place->bytes = in_place->ready = slot_bytes();
    if (SendsFrom(end(1), in_place->data, slot_bytes())) {
      EXPECT_TRUE(end(1).PostSend(in_place).ok());
    }
    closes ? CloseWholly(end(0)) : Sever(0);
    gone_[0] = true;
    std::byte* slot = nullptr;
    Status status;
    const auto post = [&] {
      if (slot == nullptr && !(status = end(1).AcquireSlot(Endpoint::kWholeSlot, &slot)).ok()) return false;
      Send* send = NewSend();
      send->data = slot;
      send->bytes = send->ready = slot_bytes();
      status = end(1).PostSend(send);
      if (status.ok()) slot = nullptr;
      return status.ok();
    };
    ASSERT_TRUE(TriesUntil(1, [&] {
      while (post()) continue;
      return !status.would_block();
    })) << "sending blocks for ever";
    EXPECT_EQ(status.code(), Code::kPeerLost) << status.ToString();
    EXPECT_EQ(status.peer(), 0);
    const auto pending = [](const Send& send) { return send.code == Code::kInProgress; };
    ASSERT_TRUE(TriesUntil(1, [&] { return std::none_of(sends_.begin(), sends_.end(), pending); })) << "sends hang";
    for (const Send& send : sends_) EXPECT_TRUE(send.code == Code::kOk || send.code == Code::kPeerLost);
    Recv* recv = NewRecv(slot_bytes());
    if (end(1).PostRecv(recv).ok()) {
      ASSERT_TRUE(RoundsUntil([&] { return recv->code != Code::kInProgress; }));
      ASSERT_EQ(recv->code, Code::kOk) << "what has arrived is lost";
      EXPECT_EQ(plan.FirstWrong(0, recv->data, recv->bytes), -1);
      ReleaseIfHeld(1, recv);
    }
    ASSERT_TRUE(RoundsUntil([&] { return !outcome_[1].ok(); }));
    EXPECT_EQ(outcome_[1].code(), Code::kPeerLost);
    EXPECT_TRUE(TestRegistry().Free(memory).ok());
  }
}

// The same for slices of the short path.
TEST_P(EndpointContract, ShortSendsToAPeerThatIsGoneEndThoughItsLastSliceIsNotReceived) {
  ShortPath* const short_path = end(1).shortcuts().short_path;
  if (short_path == nullptr) GTEST_SKIP() << "it has no short path";
  ASSERT_NE(MustSend(0, SmallPlan(), 0, 60), nullptr);
  ASSERT_TRUE(RoundsUntil([&] { return sends_.back().code == Code::kOk; }));
  const std::byte data[8] = {};
  Status status;
  for (bool is_blocked = false; !is_blocked && !Expired(); is_blocked = status.would_block()) {
    status = short_path->SendCopy(Tag(), data, sizeof(data));
    short_path->Flush();
  }
  ASSERT_TRUE(status.would_block()) << status.ToString();
  CloseWholly(end(0));
  gone_[0] = true;
  ASSERT_TRUE(TriesUntil(1, [&] {
    do {
      status = short_path->SendCopy(Tag(), data, sizeof(data));
    } while (status.ok());
    return !status.would_block();
  })) << "sending blocks for ever";
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.ToString();
  EXPECT_EQ(status.peer(), 0);
}

TEST_P(EndpointContract, ASliceCutShortByDeathIsNotDelivered) {
  std::byte* slot = nullptr;
  ASSERT_TRUE(end(0).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  Send* send = NewSend();
  send->data = slot;
  send->bytes = slot_bytes();
  send->ready = slot_bytes() / 2;
  ASSERT_TRUE(end(0).PostSend(send).ok());
  Recv* recv = MustRecv(1);
  ASSERT_NE(recv, nullptr);
  SomeRounds();
  Sever(0);
  ASSERT_TRUE(RoundsUntil([&] { return recv->code != Code::kInProgress; }));
  EXPECT_EQ(recv->code, Code::kPeerLost);
}

TEST_P(EndpointContract, TheFirstErrorSticks) {
  Recv* recv = MustRecv(1);
  ASSERT_NE(recv, nullptr);
  std::byte* slot = nullptr;
  ASSERT_TRUE(end(1).AcquireSlot(Endpoint::kWholeSlot, &slot).ok());
  Sever(0);
  ASSERT_TRUE(RoundsUntil([&] { return recv->code != Code::kInProgress; }));
  Send* send = NewSend();
  send->data = slot;
  ExpectEveryCallReturns(end(1), Code::kPeerLost, send, NewRecv(slot_bytes()));
  CloseWholly(end(1));
  ExpectEveryCallReturns(end(1), Code::kPeerLost, send, NewRecv(slot_bytes()));
}

TEST_P(EndpointContract, AHeldSlotSurvivesThePeersDeath) {
  const Plan plan = SmallPlan();
  Recv* held = MustRecv(1);
  ASSERT_NE(held, nullptr);
  ASSERT_NE(MustSend(0, plan, 5, slot_bytes()), nullptr);
  ASSERT_TRUE(RoundsUntil([&] { return held->code == Code::kOk; }));
  Recv* next = MustRecv(1);
  ASSERT_NE(next, nullptr);
  Sever(0);
  ASSERT_TRUE(RoundsUntil([&] { return next->code != Code::kInProgress; }));
  EXPECT_EQ(plan.FirstWrong(5, held->data, slot_bytes()), -1);
  ReleaseIfHeld(1, held);
}

TEST_P(EndpointContract, ASliceAboveTheCapacityBreaksTheLinkAndSaysWhatCame) {
  const Plan plan = SmallPlan();
  Recv* recv = NewRecv(99);
  ASSERT_TRUE(end(1).PostRecv(recv).ok());
  Recv* behind = MustRecv(1);
  ASSERT_NE(behind, nullptr);
  ASSERT_NE(MustSend(0, plan, 3, 100), nullptr);
  ASSERT_TRUE(RoundsUntil([&] { return recv->code != Code::kInProgress; }));
  EXPECT_EQ(recv->code, Code::kProtocol);
  EXPECT_EQ(recv->tag, plan.TagOf(3));
  EXPECT_EQ(recv->bytes, 100u);
  EXPECT_EQ(behind->code, Code::kProtocol) << "what is pending fails with the link";
  ASSERT_TRUE(RoundsUntil([&] { return !outcome_[1].ok(); }));
  EXPECT_EQ(outcome_[1].code(), Code::kProtocol);
  EXPECT_EQ(outcome_[1].peer(), 0);
  ASSERT_TRUE(RoundsUntil([&] { return !outcome_[0].ok(); })) << "the other end must learn of it";
}

TEST_P(EndpointContract, AnOversizedSliceTouchesNoMemoryOfItsReceive) {
  Recv* recv = NewRecv(64);
  recv->landing = NewBuffer(slot_bytes());
  ASSERT_TRUE(end(1).PostRecv(recv).ok());
  ASSERT_NE(MustSend(0, SmallPlan(), 3, slot_bytes()), nullptr);
  ASSERT_TRUE(RoundsUntil([&] { return recv->code != Code::kInProgress; }));
  EXPECT_EQ(recv->code, Code::kProtocol);
  for (size_t i = 0; i < slot_bytes(); ++i) ASSERT_EQ(recv->landing[i], std::byte{0}) << i;
}

TEST_P(EndpointContract, BothEndsMayCloseAtOnce) {
  for (int side = 0; side < 2; ++side) {
    ASSERT_NE(MustRecv(side), nullptr);
    ASSERT_NE(MustSend(side, SmallPlan(), 0), nullptr);
  }
  CloseWholly(end(0));
  CloseWholly(end(1));
  for (const Send& send : sends_) EXPECT_NE(send.code, Code::kInProgress);
  for (const Recv& recv : recvs_) EXPECT_NE(recv.code, Code::kInProgress);
}

}  // namespace
}  // namespace annulus
