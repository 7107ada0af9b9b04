// CallQueue: whose turn it is, which number a call has, and who is told that there is work.
#include "collectives/calls/call_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

namespace annulus {
namespace {

using Turn = CallQueue::Turn;

class CallQueueTest : public ::testing::Test {
 protected:
  CallQueueConfig Config(bool by_priority = false) {
    return {0, 2, by_priority, &monitor_, [this] { ++nudges_; }};
  }
  static CallArguments Barrier() {
    CallArguments arguments;
    arguments.kind = CollectiveKind::kBarrier;
    return arguments;
  }
  static Call CallNumber(uint64_t sequence) {
    Call call;
    call.sequence = sequence;
    return call;
  }

  Monitor monitor_{2};
  int nudges_ = 0;
  CallQueue queue_{Config()};
};

TEST_F(CallQueueTest, AShortTurnIsForOneAndCountsItsCalls) {
  Turn turn(&queue_);
  ASSERT_TRUE(turn);
  EXPECT_EQ(turn.NextSequence(), 1u);
  turn.EndCall(Barrier(), Code::kOk);
  EXPECT_FALSE(turn);
  EXPECT_EQ(monitor_.Read(0).collectives, 1u);
  Turn next(&queue_);
  ASSERT_TRUE(next);
  EXPECT_EQ(next.NextSequence(), 2u);
}

TEST_F(CallQueueTest, ALongTurnLetsOthersQueueAndNobodyElseDrive) {
  Turn turn(&queue_);
  turn.Lengthen(CallNumber(turn.NextSequence()));
  EXPECT_FALSE(Turn(&queue_));
  EXPECT_TRUE(queue_.IsDrivenByThisThread());
  EXPECT_EQ(queue_.Current().sequence, 1u);
  Request request, other;
  queue_.Add(&request);
  EXPECT_EQ(nudges_, 0) << "this thread drives, so it does not sleep";
  std::thread([&] { queue_.Add(&other); }).join();
  EXPECT_EQ(nudges_, 1);
  turn.EndCall(Barrier(), Code::kTimeout);
  EXPECT_EQ(monitor_.Read(0).collectives_failed, 1u);
  EXPECT_FALSE(queue_.IsDrivenByThisThread());
  EXPECT_EQ(queue_.Current().sequence, 2u);
  EXPECT_EQ(request.call.sequence, 0u);
  EXPECT_TRUE(Turn(&queue_, Turn::OnlyLock()).MayDriveFirst(&request));
  EXPECT_EQ(request.call.sequence, 2u) << "its turn has come";
}

TEST_F(CallQueueTest, NobodyOvertakesWhatIsQueued) {
  Request request;
  request.arguments = Barrier();
  queue_.Add(&request);
  EXPECT_EQ(nudges_, 0);
  EXPECT_FALSE(Turn(&queue_));
  EXPECT_EQ(queue_.Current().sequence, 1u);
  {
    Turn turn(&queue_, Turn::AwaitWork());
    bool is_stopping = true;
    EXPECT_EQ(queue_.DriveFirst(&is_stopping), &request);
    EXPECT_FALSE(is_stopping);
    queue_.Remove(&request, Code::kOk);
  }
  EXPECT_FALSE(queue_.HasCalls());
  EXPECT_EQ(monitor_.Read(0).collectives, 1u);
  EXPECT_TRUE(Turn(&queue_));
}

TEST_F(CallQueueTest, TheShortTurnOfAQueuedCallIsForTheNextOneOnly) {
  Request first, second;
  first.arguments = second.arguments = Barrier();
  const auto may_drive = [this](const Request* request) {
    return Turn(&queue_, Turn::OnlyLock()).MayDriveFirst(request);
  };
  EXPECT_FALSE(may_drive(&first));
  queue_.Add(&first);
  {
    Turn turn(&queue_, Turn::OnlyLock());
    EXPECT_TRUE(turn.MayDrive());
    EXPECT_FALSE(turn.MayDriveMessages());
    turn.Add(&second);
  }
  EXPECT_FALSE(may_drive(&second));
  {
    Turn turn(&queue_, Turn::OnlyLock());
    ASSERT_TRUE(turn.MayDriveFirst(&first));
    EXPECT_EQ(first.call.sequence, 1u);
    EXPECT_FALSE(queue_.IsDrivenByThisThread());
    turn.RemoveFirst(Code::kOk);
    turn.End();
    EXPECT_FALSE(turn);
  }
  EXPECT_FALSE(may_drive(&first));
  EXPECT_EQ(monitor_.Read(0).collectives, 1u);
  {
    Turn turn(&queue_, Turn::OnlyLock());
    ASSERT_TRUE(turn.MayDriveFirst(&second));
    turn.Lengthen(second.call);
    EXPECT_FALSE(may_drive(&second));
    EXPECT_FALSE(Turn(&queue_, Turn::OnlyLock()).MayDrive());
    EXPECT_TRUE(queue_.IsDrivenByThisThread());
    turn.Shorten();
    turn.RemoveFirst(Code::kTimeout);
    turn.End();
  }
  EXPECT_FALSE(queue_.IsDrivenByThisThread());
  EXPECT_FALSE(queue_.HasCalls());
  EXPECT_EQ(monitor_.Read(0).collectives_failed, 1u);
  EXPECT_TRUE(Turn(&queue_));
}

TEST_F(CallQueueTest, OneThatWaitsTakesATurnThatNobodyHas) {
  Request request;
  queue_.Add(&request);
  {
    Turn turn(&queue_, {[] { return false; }});
    EXPECT_TRUE(turn);
    EXPECT_TRUE(queue_.IsDrivenByThisThread());
    EXPECT_EQ(nudges_, 0);
  }
  EXPECT_FALSE(Turn(&queue_, {[] { return true; }}));
  queue_.Remove(&request, Code::kOk);
}

TEST_F(CallQueueTest, OneThatWaitsAsksForTheTurnOfAnotherAndGetsItAtItsEnd) {
  Turn turn(&queue_);
  turn.Lengthen(CallNumber(turn.NextSequence()));
  EXPECT_FALSE(queue_.IsWanted());
  EXPECT_FALSE(Turn(&queue_, {[] { return false; }, Now()}));
  EXPECT_EQ(nudges_, 1);
  auto waits = std::async(std::launch::async, [this] { return bool(Turn(&queue_, {[] { return false; }})); });
  while (!queue_.IsWanted()) std::this_thread::yield();
  turn.End();
  EXPECT_TRUE(waits.get());
  EXPECT_FALSE(queue_.IsWanted());
}

TEST_F(CallQueueTest, OneThatWaitsIsToldOfTheEndWhileAnotherHasTheTurn) {
  Turn turn(&queue_);
  turn.Lengthen(CallNumber(turn.NextSequence()));
  std::atomic<bool> is_over = false;
  auto waits = std::async(std::launch::async, [&] { return bool(Turn(&queue_, {[&] { return is_over.load(); }})); });
  while (!queue_.IsWanted()) std::this_thread::yield();
  is_over = true;
  queue_.AnnounceEnd();
  EXPECT_FALSE(waits.get());
}

TEST_F(CallQueueTest, ByPriorityOneThatWaitsLeavesTheTurnToTheProgressThread) {
  CallQueue queue(Config(true));
  Request request;
  queue.Add(&request);
  EXPECT_FALSE(Turn(&queue, {[] { return false; }, Now()}));
  EXPECT_FALSE(queue.IsWanted());
  {
    Turn turn(&queue, Turn::AwaitWork());
    EXPECT_TRUE(turn);
  }
  queue.Remove(&request, Code::kOk);
}

TEST_F(CallQueueTest, AMessageKeepsNobodyFromDriving) {
  Request message;
  message.arguments.kind = CollectiveKind::kSend;
  queue_.PostMessage(&message);
  EXPECT_TRUE(Turn(&queue_));
  EXPECT_TRUE(queue_.HasMessages());
  queue_.EndMessage(&message, Code::kOk);
  EXPECT_FALSE(queue_.HasMessages());
  EXPECT_EQ(monitor_.Read(0).messages, 1u);
}

TEST_F(CallQueueTest, MessagesAreTakenInTheirOrderAndAnEndedOneIsNot) {
  Request messages[4];
  for (Request& message : messages) queue_.PostMessage(&message);
  queue_.EndMessage(&messages[1], Code::kOk);
  EXPECT_EQ(queue_.TakeMessage(), &messages[0]);
  queue_.EndMessage(&messages[0], Code::kOk);
  EXPECT_EQ(queue_.TakeMessage(), &messages[2]);
  EXPECT_EQ(queue_.TakeMessage(), &messages[3]);
  EXPECT_EQ(queue_.TakeMessage(), nullptr);
  EXPECT_FALSE(queue_.HasMessages());
}

TEST_F(CallQueueTest, PostedMessagesAreTakenOnInTheirOrder) {
  const auto message = [](CollectiveKind kind, int peer) {
    CallArguments arguments;
    arguments.kind = kind;
    arguments.root = peer;
    return arguments;
  };
  Request to_one, from_one, to_two, from_any;
  to_one.arguments = message(CollectiveKind::kSend, 1);
  from_one.arguments = message(CollectiveKind::kRecv, 1);
  to_two.arguments = message(CollectiveKind::kSend, 2);
  from_any.arguments = message(CollectiveKind::kRecv, ANNULUS_ANY_PEER);
  for (Request* each : {&to_one, &from_one, &to_two, &from_any}) queue_.PostMessage(each);
  EXPECT_TRUE(queue_.has_posted()->load());
  {
    Turn turn(&queue_, Turn::OnlyLock());
    EXPECT_EQ(turn.FirstPosted(), &to_one);
    EXPECT_EQ(turn.FirstMessage(), nullptr);
    EXPECT_FALSE(turn.HasPostedBefore(to_one.arguments, &to_one));
    EXPECT_FALSE(turn.HasPostedBefore(from_one.arguments, &from_one)) << "the other direction";
    EXPECT_FALSE(turn.HasPostedBefore(to_two.arguments, &to_two)) << "another peer";
    EXPECT_TRUE(turn.HasPostedBefore(to_one.arguments, nullptr));
    EXPECT_TRUE(turn.HasPostedBefore(message(CollectiveKind::kRecv, 3), nullptr)) << "a receive from any peer";
    EXPECT_FALSE(turn.HasPostedBefore(message(CollectiveKind::kSend, 3), nullptr));
    turn.RemoveMessage(&from_one);
    turn.KeepMessage(&to_two, false);
    EXPECT_FALSE(turn.IsPosted(&to_two));
    EXPECT_EQ(turn.FirstMessage(), &to_two);
  }
  EXPECT_EQ(monitor_.Read(0).messages, 1u);
  EXPECT_EQ(queue_.FirstPosted(), &to_one);
  queue_.AcceptFirst();
  EXPECT_TRUE(queue_.has_posted()->load());
  EXPECT_EQ(queue_.FirstPosted(), &from_any);
  queue_.AcceptFirst();
  EXPECT_FALSE(queue_.has_posted()->load());
  EXPECT_EQ(queue_.FirstPosted(), nullptr);
  EXPECT_EQ(queue_.TakeMessage(), &to_two);
  EXPECT_TRUE(queue_.HasMessages());
  for (Request* each : {&to_one, &from_any}) queue_.EndMessage(each, Code::kOk);
  EXPECT_FALSE(queue_.HasMessages());
}

TEST_F(CallQueueTest, AFusedRequestCountsAsItsMembers) {
  Request members[3];
  for (Request& member : members) member.arguments = Barrier();
  Request fused;
  fused.arguments = Barrier();
  for (Request& member : members) fused.members.push_back(&member);
  queue_.CountEnd(fused, Code::kOk);
  EXPECT_EQ(monitor_.Read(0).collectives, 3u);
}

TEST_F(CallQueueTest, SoDoesOneWhoseMembersHaveNoRequests) {
  Request fused;
  fused.arguments.kind = CollectiveKind::kAllreduce;
  fused.fused_calls = 3;
  fused.call.kind = CollectiveKind::kAllreduceGroup;
  fused.call.count = 5;
  queue_.CountEnd(fused, Code::kOk);
  EXPECT_EQ(monitor_.Read(0).collectives, 3u);
  EXPECT_EQ(monitor_.Read(0).data_bytes, 20u);
  queue_.CountEnd(fused, Code::kPeerLost);
  EXPECT_EQ(monitor_.Read(0).collectives_failed, 3u);
  EXPECT_EQ(monitor_.Read(0).data_bytes, 20u);
}

TEST_F(CallQueueTest, WhatAnAgreementReleasesComesNextInItsOrder) {
  Request agreement, first, second, later;
  agreement.arguments.kind = CollectiveKind::kAgreement;
  agreement.held = {&first, &second};
  queue_.Add(&agreement);
  queue_.Add(&later);
  bool is_stopping = true;
  EXPECT_EQ(queue_.DriveFirst(&is_stopping), &agreement);
  queue_.Release(&agreement);
  EXPECT_EQ(queue_.FirstReleased(), &first);
  uint64_t sequence = 2;
  for (Request* each : {&first, &second, &later}) {
    EXPECT_EQ(queue_.DriveFirst(&is_stopping), each);
    EXPECT_EQ(each->call.sequence, sequence++);
    EXPECT_EQ(queue_.FirstReleased(), each == &later ? nullptr : each);
    queue_.Remove(each, Code::kOk);
  }
  EXPECT_FALSE(queue_.HasCalls());
}

TEST_F(CallQueueTest, AnAgreementThatIsDroppedCountsNothingAndOneThatFailsWhatItHolds) {
  Request members[3];
  Request agreement, fused;
  agreement.arguments.kind = CollectiveKind::kAgreement;
  for (Request& member : members) {
    member.arguments = Barrier();
    fused.members.push_back(&member);
  }
  agreement.held = {&fused};
  queue_.Add(&agreement);
  queue_.Drop(&agreement);
  EXPECT_FALSE(queue_.HasCalls());
  EXPECT_EQ(monitor_.Read(0).collectives_failed, 0u);
  queue_.CountEnd(agreement, Code::kPeerLost);
  EXPECT_EQ(monitor_.Read(0).collectives_failed, 3u);
}

TEST_F(CallQueueTest, ByPriorityCallsGetTheirNumberWhenTheyAreDriven) {
  CallQueue queue(Config(true));
  Request low, high, late;
  high.options.priority = late.options.priority = 1;
  for (Request* each : {&low, &high, &late}) queue.Add(each);
  EXPECT_EQ(queue.FirstByPriority(), &high);
  bool is_stopping = true;
  EXPECT_EQ(queue.DriveFirst(&is_stopping), &low);
  EXPECT_EQ(queue.Find(late.number), &late);
  EXPECT_EQ(queue.Find(4), nullptr);
  EXPECT_EQ(high.call.sequence, 0u);
  EXPECT_EQ(queue.NextSequence(), 1u);
  queue.GiveSequence(&high);
  EXPECT_EQ(high.call.sequence, 2u);
}

TEST_F(CallQueueTest, NewsAreNoticedOnce) {
  EXPECT_FALSE(queue_.Notice());
  Request request;
  queue_.Add(&request);
  EXPECT_TRUE(queue_.Notice());
  EXPECT_FALSE(queue_.Notice());
}

TEST_F(CallQueueTest, TheOneThatAwaitsWorkIsWokenByACallAndByTheEnd) {
  Request request;
  auto worker = std::async(std::launch::async, [this] {
    for (;;) {
      Turn turn(&queue_, Turn::AwaitWork());
      bool is_stopping = false;
      Request* const next = queue_.DriveFirst(&is_stopping);
      if (next == nullptr) return is_stopping;
      queue_.Remove(next, Code::kOk);
    }
  });
  queue_.Add(&request);
  queue_.Stop();
  EXPECT_TRUE(worker.get());
}

// Whether the one that awaits work, which by then should sleep, leaves alone a call whose owner is to come, and takes
// it with the next one.
bool IsLeftAsleep(CallQueue* queue) {
  std::atomic<int> driven{0};
  const auto worker = std::async(std::launch::async, [&] {
    while (driven < 2) {
      const Turn turn(queue, Turn::AwaitWork());
      bool is_stopping = false;
      Request* const next = queue->DriveFirst(&is_stopping);
      if (next != nullptr) queue->Remove(next, Code::kOk);
      if (next != nullptr) ++driven;
    }
  });
  worker.wait_for(std::chrono::milliseconds(200));
  Request quiet, loud;
  Turn(queue, Turn::OnlyLock()).Add(&quiet, false);
  worker.wait_for(std::chrono::milliseconds(100));
  const bool is_left = driven == 0;
  queue->Add(&loud);
  worker.wait();
  return is_left;
}

// On a busy machine it may take longer to fall asleep.
TEST_F(CallQueueTest, TheOneThatAwaitsWorkIsNotWokenForACallWhoseOwnerIsToCome) {
  bool is_left = false;
  for (int attempt = 0; attempt < 20 && !is_left; ++attempt) is_left = IsLeftAsleep(&queue_);
  EXPECT_TRUE(is_left);
}

TEST_F(CallQueueTest, NothingIsQueuedOnceItStops) {
  queue_.Stop();
  Request request;
  EXPECT_FALSE(queue_.Add(&request));
  EXPECT_FALSE(queue_.PostMessage(&request));
  EXPECT_FALSE(queue_.HasCalls() || queue_.HasMessages());
}

TEST_F(CallQueueTest, StoppingTellsWhetherSomethingIsLeft) {
  EXPECT_FALSE(queue_.Stop());
  CallQueue busy(Config());
  Request request;
  busy.Add(&request);
  EXPECT_TRUE(busy.Stop());
}

}  // namespace
}  // namespace annulus
