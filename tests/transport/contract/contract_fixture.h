// EndpointContract: the fixture of the contract suite. Owns a link and everything that tests lend to it.
//
// Threads: one, unless a test says so.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/transport/contract/contract_traffic.h"
#include "transport/transport.h"

namespace annulus {

class EndpointContract : public ::testing::TestWithParam<ContractBackend> {
 protected:
  void SetUp() override { ASSERT_TRUE(Open({})); }

  // Replaces the link by one with these options.
  bool Open(const LinkOptions& options) {
    link_.reset();
    link_ = GetParam().connect(options);
    gone_[0] = gone_[1] = false;
    deadline_ = DeadlineAfter(kContractPatience);
    if (link_ != nullptr) limits_ = end(0).limits();
    return link_ != nullptr;
  }

  Endpoint& end(int side) { return link_->end(side); }
  // Side 0's; also when that side is gone.
  const Limits& limits() const { return limits_; }
  bool Expired() const { return Now() > deadline_; }

  void Sever(int side) {
    link_->Sever(side);
    gone_[side] = true;
  }

  // One Progress() of `side`; its outcome is also kept in outcome_.
  bool Progress(int side) {
    bool moved = false;
    outcome_[side] = end(side).Progress(&moved);
    return moved;
  }

  // Progresses both ends once, and lets time pass when neither moved.
  void Round() {
    bool moved = false;
    for (int side = 0; side < 2; ++side) {
      if (!gone_[side]) moved |= Progress(side);
    }
    if (!moved) link_->Pass();
  }

  // Rounds until `done`; false when it takes too long.
  template <class Condition>
  bool RoundsUntil(Condition done) {
    while (!done()) {
      if (Expired()) return false;
      Round();
    }
    return true;
  }

  // A fixed, generous number of rounds, for tests that something does not happen.
  void SomeRounds() {
    for (int i = 0; i < 200; ++i) Round();
  }

  // Whether what woke or should wake `side` came before the deadline. The side must have been armed.
  bool WaitForWake(int side) {
    Reactor* reactor = link_->reactor(side);
    if (reactor != nullptr) {
      reactor->WaitUntil(deadline_);
      return !Expired();
    }
    while (end(side).Arm()) {
      if (Expired()) return false;
      link_->Pass();
    }
    return true;
  }

  // Tries until `done`, as an engine does: one end progresses after each try, and sleeps if nothing has moved. False
  // when it takes too long, or nothing wakes it.
  template <class Condition>
  bool TriesUntil(int side, Condition done) {
    while (!done()) {
      if (Expired()) return false;
      if (Progress(side)) continue;
      Reactor* const reactor = link_->reactor(side);
      if (reactor == nullptr) link_->Pass();
      if (reactor != nullptr && end(side).Arm()) reactor->WaitUntil(deadline_);
    }
    return true;
  }

  // Lent memory lives as long as the fixture, so a test that fails half-way leaves nothing dangling.
  Send* NewSend() { return &sends_.emplace_back(); }
  Recv* NewRecv(uint32_t capacity) {
    recvs_.emplace_back().capacity = capacity;
    return &recvs_.back();
  }
  std::byte* NewBuffer(size_t bytes) { return buffers_.emplace_back(bytes).data(); }
  SliceTalker& NewTalker(int side, const Plan& plan) { return talkers_.emplace_back(&end(side), plan); }
  SliceListener& NewListener(int side, const Plan& plan) { return listeners_.emplace_back(&end(side), plan); }

  uint32_t slot_bytes() const { return static_cast<uint32_t>(limits().slot_bytes); }
  Plan SmallPlan() const { return {.max_bytes = limits().slot_bytes}; }

  // Acquires a slot, fills it with slice `index` of `plan` and posts it, driving the link while it would block.
  // `bytes` < 0: as planned. Null on failure.
  Send* MustSend(int side, const Plan& plan, uint64_t index, int64_t bytes = -1) {
    std::byte* slot = nullptr;
    if (!RoundsUntil([&] { return !end(side).AcquireSlot(Endpoint::kWholeSlot, &slot).would_block(); }) ||
        slot == nullptr)
      return nullptr;
    Send* send = NewSend();
    send->tag = plan.TagOf(index);
    send->bytes = send->ready = bytes < 0 ? plan.Bytes(index) : static_cast<uint32_t>(bytes);
    send->data = slot;
    plan.Fill(index, slot, 0, send->bytes);
    Status status;
    if (!RoundsUntil([&] { return !(status = end(side).PostSend(send)).would_block(); })) return nullptr;
    return status.ok() ? send : nullptr;
  }

  // Posts a receive without landing. Null on failure, would_block included.
  Recv* MustRecv(int side) {
    Recv* recv = NewRecv(slot_bytes());
    return end(side).PostRecv(recv).ok() ? recv : nullptr;
  }

  void ReleaseIfHeld(int side, Recv* recv) {
    if (recv->code == Code::kOk && recv->data != recv->landing) end(side).Release(recv);
  }

  // Runs both directions at once, from one thread, until all is done.
  void RunTraffic(const Plan& forward, const Plan& backward) {
    SliceTalker& talker0 = NewTalker(0, forward);
    SliceListener& listener1 = NewListener(1, forward);
    SliceTalker& talker1 = NewTalker(1, backward);
    SliceListener& listener0 = NewListener(0, backward);
    const bool finished = RoundsUntil([&] {
      talker0.Step();
      talker1.Step();
      listener0.Step();
      listener1.Step();
      if (talker0.broken() || talker1.broken() || listener0.broken() || listener1.broken()) return true;
      return talker0.done() && talker1.done() && listener0.done() && listener1.done();
    });
    EXPECT_TRUE(finished) << "stuck; " << outcome_[0].ToString() << "; " << outcome_[1].ToString();
  }

  // First: destroyed after the link that they are lent to.
  std::deque<Send> sends_;
  std::deque<Recv> recvs_;
  std::deque<std::vector<std::byte>> buffers_;
  std::deque<SliceTalker> talkers_;
  std::deque<SliceListener> listeners_;

  std::unique_ptr<ContractLink> link_;
  Limits limits_;
  Deadline deadline_ = 0;
  Status outcome_[2];
  bool gone_[2] = {};
};

}  // namespace annulus
