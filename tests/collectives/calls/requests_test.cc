// Requests: how a request ends, who learns of it, and when it is gone.
#include "collectives/calls/requests.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "collectives/calls/mutex.h"

namespace annulus {
namespace {

class RequestsTest : public ::testing::Test {
 protected:
  Request* MakeOne(bool discarded = false) {
    const CallArguments arguments;
    Request* made = nullptr;
    EXPECT_TRUE(requests_->MakeWithin({}, {&arguments, 1}, discarded, &made).ok());
    return made;
  }
  Code Wait(RequestHandle handle, int64_t timeout_ms = -1) {
    return requests_->Wait(handle, timeout_ms, await_, &failed_).code();
  }
  Code Free(RequestHandle handle) { return requests_->Free(handle, await_).code(); }

  RequestTable table_;
  Mutex mu_;
  // Only named in the table.
  Communicator* const owner_ = reinterpret_cast<Communicator*>(&table_);
  Callbacks callbacks_;
  FailedCall failed_;
  const Requests::AwaitEnd await_ = [](const Request* request, Deadline until) {
    while (!request->IsDone() && Now() < until) std::this_thread::yield();
  };
  std::optional<Requests> requests_{std::in_place, RequestsConfig{&table_, owner_, &callbacks_, 0, 2, &mu_}};
};

TEST_F(RequestsTest, AnOutcomeStaysUntilTheRequestIsFreed) {
  Request* const request = MakeOne();
  const RequestHandle handle = request->handle;
  EXPECT_EQ(table_.OwnerOf(handle), owner_);
  EXPECT_EQ(Wait(handle, 0), Code::kInProgress);
  requests_->Finish(request, Code::kTimeout);
  EXPECT_EQ(Wait(handle), Code::kTimeout);
  EXPECT_EQ(Wait(handle, 0), Code::kTimeout);
  EXPECT_EQ(Free(handle), Code::kOk);
  EXPECT_EQ(Free(handle), Code::kInvalidArgument);
  EXPECT_EQ(requests_->MemoryBytes(), 0u);
}

TEST_F(RequestsTest, AGoodEndIsKnownWithoutTheLockUntilTheRequestIsFreed) {
  Request* const failed = MakeOne();
  Request* const good = MakeOne();
  const RequestHandle handle = good->handle;
  EXPECT_FALSE(requests_->HasEndedWell(handle));
  requests_->Finish(failed, Code::kTimeout);
  EXPECT_FALSE(requests_->HasEndedWell(failed->handle));
  {
    const std::lock_guard<Mutex> lock(mu_);
    requests_->MarkDone(good, Code::kOk);
    EXPECT_TRUE(requests_->HasEndedWell(handle));
  }
  EXPECT_EQ(Free(handle), Code::kOk);
  EXPECT_FALSE(requests_->HasEndedWell(handle));
  Request* const next = MakeOne();
  EXPECT_EQ(next, good) << "the same place";
  EXPECT_FALSE(requests_->HasEndedWell(next->handle));
  EXPECT_FALSE(requests_->HasEndedWell(handle));
}

TEST_F(RequestsTest, ARequestThatEndsAtOnceNeedsNoMemoryAndIsFreedAsOthersAre) {
  EXPECT_FALSE(requests_->HasSpare());
  EXPECT_EQ(Free([this] {
              Request* const first = MakeOne();
              requests_->Finish(first, Code::kOk);
              return first->handle;
            }()),
            Code::kOk);
  RequestHandle handle = 0;
  {
    const std::lock_guard<Mutex> lock(mu_);
    ASSERT_TRUE(requests_->HasSpare());
    handle = requests_->AddEnded()->handle;
  }
  EXPECT_TRUE(requests_->HasEndedWell(handle));
  EXPECT_EQ(Wait(handle), Code::kOk);
  EXPECT_TRUE(requests_->FreeDone(handle));
  EXPECT_EQ(Free(handle), Code::kInvalidArgument);
}

// A plain one, whose end takes a short way, leaves what another one begins with as it was, and the other way round.
TEST_F(RequestsTest, APlainRequestAndOthersLeaveNothingToEachOther) {
  CallArguments send;
  send.kind = CollectiveKind::kSend;
  RequestList list;
  RequestHandle earlier = 0;
  for (const bool plain : {false, true, true, false, false, true, false}) {
    Request* request = nullptr;
    {
      const std::lock_guard<Mutex> lock(mu_);
      request = plain ? requests_->AddPlain(send) : requests_->Add(send);
    }
    EXPECT_NE(request->handle, earlier);
    earlier = request->handle;
    RequestState fresh;
    fresh.handle = request->handle;
    fresh.is_plain = plain;
    EXPECT_EQ(request->place, 0u) << "the same place";
    EXPECT_EQ(request->plan, fresh.plan);
    EXPECT_EQ(request->number, fresh.number);
    EXPECT_EQ(request->list, fresh.list);
    EXPECT_EQ(request->group, fresh.group);
    EXPECT_EQ(request->waiters, fresh.waiters);
    EXPECT_EQ(request->discarded, fresh.discarded);
    EXPECT_EQ(request->told, fresh.told);
    EXPECT_EQ(request->awaited, fresh.awaited);
    EXPECT_EQ(request->done, fresh.done);
    EXPECT_EQ(request->code, fresh.code);
    EXPECT_EQ(request->is_plain, fresh.is_plain);
    EXPECT_EQ(request->options.done, nullptr);
    EXPECT_EQ(request->options.received, nullptr);
    EXPECT_EQ(request->label, "");
    request->plan = 7;
    request->number = 8;
    request->told = request->awaited = true;
    list.push_back(request);
    list.erase(request);
    requests_->Finish(request, Code::kTimeout);
    EXPECT_EQ(Wait(request->handle), Code::kTimeout);
    EXPECT_EQ(Free(request->handle), Code::kOk);
  }
  EXPECT_EQ(requests_->MemoryBytes(), 0u);
}

TEST_F(RequestsTest, APlainRequestThatNobodyHoldsGoesWithItsEnd) {
  Request* request = nullptr;
  {
    const std::lock_guard<Mutex> lock(mu_);
    request = requests_->AddPlain(CallArguments());
    request->discarded = true;
  }
  const RequestHandle handle = request->handle;
  requests_->Finish(request, Code::kOk);
  EXPECT_EQ(Wait(handle, 0), Code::kInvalidArgument);
  EXPECT_EQ(requests_->MemoryBytes(), 0u);
}

TEST_F(RequestsTest, WaitingEndsWithTheRequest) {
  Request* const request = MakeOne();
  const RequestHandle handle = request->handle;
  auto waiter = std::async(std::launch::async, [&] { return Wait(handle); });
  requests_->Finish(request, Code::kOk);
  EXPECT_EQ(waiter.get(), Code::kOk);
}

TEST_F(RequestsTest, AWaitHasALimit) {
  Request* const request = MakeOne();
  EXPECT_EQ(Wait(request->handle, 1), Code::kInProgress);
  requests_->Finish(request, Code::kOk);
}

TEST_F(RequestsTest, WhatIsFreedWhileAnotherThreadWaitsStaysUntilTheWaitIsOver) {
  Request* const request = MakeOne();
  const RequestHandle handle = request->handle;
  const Requests::AwaitEnd ends = [&](const Request*, Deadline) {
    requests_->Finish(request, Code::kTimeout);
    EXPECT_EQ(Free(handle), Code::kOk);
  };
  EXPECT_EQ(requests_->Wait(handle, -1, ends, &failed_).code(), Code::kTimeout);
  EXPECT_EQ(requests_->MemoryBytes(), 0u);
}

TEST_F(RequestsTest, WhereWaitingWouldLastForEverItDoesNotBlock) {
  Request* const request = MakeOne();
  const RequestHandle handle = request->handle;
  EXPECT_EQ(requests_->Wait(handle, -1, nullptr, &failed_).code(), Code::kInProgress);
  EXPECT_TRUE(requests_->Free(handle, nullptr).ok());
  EXPECT_EQ(Wait(handle), Code::kInvalidArgument);
  requests_->Finish(request, Code::kOk);
  EXPECT_FALSE(requests_->HasEndedWell(handle)) << "its end does not bring it back";
}

TEST_F(RequestsTest, OneThatIsDoneAndForWhichNobodyWaitsIsFreedAtOnce) {
  Request* const request = MakeOne();
  const RequestHandle handle = request->handle;
  EXPECT_FALSE(requests_->FreeDone(handle));
  requests_->Finish(request, Code::kTimeout);
  ++request->waiters;
  EXPECT_FALSE(requests_->FreeDone(handle));
  --request->waiters;
  EXPECT_TRUE(requests_->FreeDone(handle));
  EXPECT_FALSE(requests_->FreeDone(handle));
  EXPECT_EQ(requests_->MemoryBytes(), 0u);
}

// More are held at once than are kept between requests.
TEST_F(RequestsTest, NoHandleComesAgainThoughRequestsDo) {
  std::set<RequestHandle> seen;
  for (int round = 0; round < 3; ++round) {
    std::vector<RequestHandle> held;
    for (int i = 0; i < 200; ++i) {
      Request* const request = MakeOne();
      EXPECT_EQ(request->code, Code::kInProgress);
      EXPECT_FALSE(request->IsDone());
      EXPECT_EQ(table_.OwnerOf(request->handle), owner_);
      held.push_back(request->handle);
      requests_->Finish(request, Code::kMismatch);
    }
    seen.insert(held.begin(), held.end());
    for (const RequestHandle handle : held) EXPECT_EQ(Free(handle), Code::kOk);
    for (const RequestHandle handle : held) EXPECT_EQ(table_.OwnerOf(handle), nullptr);
  }
  EXPECT_EQ(seen.size(), 600u);
}

TEST_F(RequestsTest, OneThatHasEndedWellIsFreedWithoutTheLock) {
  Request* const request = MakeOne();
  const RequestHandle handle = request->handle;
  requests_->Finish(request, Code::kOk);
  {
    const std::lock_guard<Mutex> lock(mu_);
    EXPECT_TRUE(requests_->FreeDone(handle));
  }
  EXPECT_FALSE(requests_->FreeDone(handle));
  EXPECT_FALSE(requests_->HasEndedWell(handle));
  EXPECT_EQ(table_.OwnerOf(handle), nullptr);
  EXPECT_NE(table_.WhyNot(handle).message().find("was freed already"), std::string::npos);
  EXPECT_EQ(Free(handle), Code::kInvalidArgument);
  EXPECT_EQ(requests_->MemoryBytes(), 0u);
  EXPECT_EQ(MakeOne(), request) << "the same place";
}

TEST_F(RequestsTest, OneThatWasFreedStaysSoWhenItsCommunicatorGoes) {
  Request* const freed = MakeOne();
  Request* const held = MakeOne();
  const RequestHandle freed_handle = freed->handle;
  const RequestHandle held_handle = held->handle;
  requests_->Finish(freed, Code::kOk);
  requests_->Finish(held, Code::kOk);
  EXPECT_TRUE(requests_->FreeDone(freed_handle));
  requests_.reset();
  EXPECT_NE(table_.WhyNot(freed_handle).message().find("was freed already"), std::string::npos);
  EXPECT_NE(table_.WhyNot(held_handle).message().find("communicator was destroyed"), std::string::npos);
  EXPECT_FALSE(table_.HasEndedWell(held_handle));
  EXPECT_FALSE(table_.LetGo(held_handle));
}

// Neither frees the request that comes after it in the same place.
TEST_F(RequestsTest, OfTwoThreadsThatFreeARequestOneIsTold) {
  constexpr int kRounds = 20'000;
  std::atomic<RequestHandle> shared{0};
  std::atomic<int> freed{0};
  const auto free_next = [&](RequestHandle* last) {
    RequestHandle handle = *last;
    for (int look = 0; look < 10'000 && handle == *last; ++look) handle = shared.load();
    if (handle == *last) return std::this_thread::yield();
    *last = handle;
    if (requests_->FreeDone(handle) || Free(handle) == Code::kOk) ++freed;
  };
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    for (RequestHandle last = 0; !is_over.load();) free_next(&last);
  });
  RequestHandle last = 0;
  std::atomic<int> pauses{0};
  for (int round = 1; round <= kRounds; ++round) {
    Request* const request = MakeOne();
    requests_->Finish(request, Code::kOk);
    shared.store(request->handle);
    for (pauses = round % 64; pauses > 0;) --pauses;  // So that both come at a time, now and then.
    free_next(&last);
    while (freed.load() < round) std::this_thread::yield();
    ASSERT_EQ(freed.load(), round);
  }
  is_over.store(true);
  other.join();
  EXPECT_EQ(freed.load(), kRounds);
}

TEST_F(RequestsTest, OneThatIsFreedWhileAnotherThreadWaitsIsNotUsedAgainBefore) {
  Request* const request = MakeOne();
  requests_->Finish(request, Code::kOk);
  ++request->waiters;
  EXPECT_TRUE(requests_->FreeDone(request->handle));
  EXPECT_NE(MakeOne(), request);
  EXPECT_NE(requests_->MemoryBytes(), 0u);
  --request->waiters;
  std::set<Request*> made;
  for (int i = 0; i < 8; ++i) made.insert(MakeOne());
  EXPECT_TRUE(made.contains(request));
}

// Each is freed while a later one is held.
TEST_F(RequestsTest, AWindowOfRequestsTakesNoMoreMemoryInTime) {
  constexpr size_t kWindow = 10;
  std::deque<RequestHandle> window;
  std::set<Request*> used;
  for (int i = 0; i < 1000; ++i) {
    Request* const request = MakeOne();
    used.insert(request);
    requests_->Finish(request, Code::kOk);
    window.push_back(request->handle);
    if (window.size() <= kWindow) continue;
    EXPECT_TRUE(requests_->FreeDone(window.front()));
    window.pop_front();
  }
  EXPECT_LE(used.size(), 4 * kWindow);
}

TEST_F(RequestsTest, ARequestThatNobodyHoldsGoesWithItsEnd) {
  Request* const request = MakeOne(true);
  EXPECT_GT(requests_->MemoryBytes(), 0u);
  requests_->Finish(request, Code::kOk);
  EXPECT_EQ(requests_->MemoryBytes(), 0u);
}

TEST_F(RequestsTest, AReleasedRequestGoesWithItsOutcome) {
  Request* const request = requests_->Make(CallArguments());
  EXPECT_FALSE(request->IsDone());
  requests_->Finish(request, Code::kMismatch);
  EXPECT_TRUE(request->IsDone());
  EXPECT_EQ(requests_->Release(request).code(), Code::kMismatch);
  EXPECT_EQ(requests_->MemoryBytes(), 0u);
}

TEST_F(RequestsTest, AGroupIsDoneWithTheLastOfItsCallsAndFailsWithTheFirstThatFails) {
  Request* const first = MakeOne();
  Request* const second = MakeOne();
  const RequestHandle group = requests_->MakeGroup({first, second})->handle;
  requests_->Finish(first, Code::kTimeout);
  EXPECT_EQ(Wait(group, 0), Code::kInProgress);
  requests_->Finish(second, Code::kOk);
  EXPECT_EQ(Wait(group), Code::kTimeout);
}

TEST_F(RequestsTest, AnEmptyGroupIsDoneAtOnce) { EXPECT_EQ(Wait(requests_->MakeGroup({})->handle), Code::kOk); }

TEST_F(RequestsTest, AFusedRequestEndsItsMembers) {
  std::array<float, 6> data{};
  std::vector<Request*> members;
  for (size_t count : {2, 4}) {
    CallArguments arguments;
    arguments.kind = CollectiveKind::kAllreduce;
    arguments.count = count;
    arguments.sendbuf = arguments.recvbuf = &data[count - 2];
    Request* member = nullptr;
    ASSERT_TRUE(requests_->MakeWithin({}, {&arguments, 1}, false, &member).ok());
    members.push_back(member);
  }
  Request* const fused = requests_->MakeFused(members);
  EXPECT_EQ(fused->call.kind, CollectiveKind::kAllreduceGroup);
  EXPECT_EQ(fused->call.count, 6u);
  requests_->Finish(fused, Code::kOk);
  for (const Request* member : members) EXPECT_EQ(Wait(member->handle), Code::kOk);
}

TEST_F(RequestsTest, OneBeyondTheBudgetIsRefused) {
  RequestBudget budget{.most = 1000, .held_elsewhere = 800, .wanted = 200};
  const CallArguments arguments;
  Request* made = nullptr;
  EXPECT_TRUE(requests_->MakeWithin(budget, {&arguments, 1}, false, &made).ok());
  EXPECT_EQ(requests_->MakeWithin(budget, {&arguments, 1}, false, &made).code(), Code::kOutOfMemory);
  budget.most = 0;
  EXPECT_TRUE(requests_->MakeWithin(budget, {&arguments, 1}, false, &made).ok());
}

TEST_F(RequestsTest, TheCallbackOfARequestIsCalledOnceWithItsOutcome) {
  std::promise<annulus_status_t> called;
  CallOptions options;
  options.done = [](void* context, annulus_status_t status) {
    static_cast<std::promise<annulus_status_t>*>(context)->set_value(status);  // Throws when it is called again.
  };
  options.done_context = &called;
  CallArguments arguments;
  arguments.options = &options;
  ASSERT_TRUE(callbacks_.Start().ok());
  Request* made = nullptr;
  ASSERT_TRUE(requests_->MakeWithin({}, {&arguments, 1}, true, &made).ok());
  requests_->Finish(made, Code::kTimeout);
  EXPECT_EQ(called.get_future().get(), ANNULUS_TIMEOUT);
  callbacks_.Finish();
}

TEST_F(RequestsTest, TheEndOfTheirCommunicatorIsWhyHandlesStandForNothing) {
  const RequestHandle handle = MakeOne()->handle;
  requests_.reset();
  EXPECT_EQ(table_.OwnerOf(handle), nullptr);
  EXPECT_NE(table_.WhyNot(handle).message().find("its communicator was destroyed"), std::string::npos);
}

}  // namespace
}  // namespace annulus
