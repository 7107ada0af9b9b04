// GraphReplays with calls whose launches the test makes: turns, launches that must not wait for ever, and ends.
#include "collectives/comm/graph_replays.h"

#include <annulus.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "collectives/calls/request.h"
#include "collectives/core/collective.h"
#include "collectives/reduce/graph_call.h"
#include "collectives/reduce/stream_call.h"

namespace annulus {
namespace {

using Kind = CollectiveKind;

// A call in a graph, whose device is the test.
class TestCall final : public GraphCall {
 public:
  TestCall(StreamWords* words, std::shared_ptr<GraphBell> bell) : GraphCall(words, std::move(bell)), words_(words) {}

  void OpenForGood() override { is_open_.store(true); }
  bool IsOpenForGood() const override { return is_open_.load(); }

  using GraphCall::NoteEnd;
  using GraphCall::NoteLaunch;
  // The launch passes the gate, as soon as that is open.
  bool Passes() {
    uint32_t open = 1;
    return __atomic_compare_exchange_n(&words_->gate, &open, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) ||
           is_open_.load();
  }

 private:
  StreamWords* const words_;
  std::atomic<bool> is_open_{false};
};

struct Shape {
  Kind kind = Kind::kAllreduce;
  int peer = 0;
  const char* label = nullptr;
};

// Calls of one capture. What the replays begin is noted; the calls of a launch end when the test says so.
class GraphReplaysTest : public testing::Test {
 protected:
  static constexpr Nanoseconds kLong = 60 * kSecond;

  ~GraphReplaysTest() override { replays_.Stop(); }

  void Capture(const std::vector<Shape>& shapes, Nanoseconds timeout = kLong, uint64_t capture = 1) {
    for (const Shape& shape : shapes) {
      words_.push_back(std::make_unique<StreamWords>());
      calls_.push_back(std::make_unique<TestCall>(words_.back().get(), replays_.bell()));
      requests_.push_back(std::make_unique<Request>());
      options_.push_back(std::make_unique<CallOptions>());
      CallArguments& arguments = requests_.back()->arguments;
      options_.back()->label = shape.label;
      arguments.options = options_.back().get();
      arguments.kind = shape.kind;
      arguments.root = shape.peer;
      replays_.Add({calls_.back().get(), capture, {requests_.back().get()}, timeout});
    }
    ASSERT_TRUE(replays_.Start().ok());
  }
  void Launch(size_t call) { calls_[call]->NoteLaunch(); }
  // Waits until so many launches were begun, and returns their calls.
  std::vector<size_t> Begun(size_t count) {
    std::unique_lock<std::mutex> lock(mu_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::nanoseconds(kLong), [&] { return begun_.size() >= count; }));
    return begun_;
  }
  // The calls of a launch end, and it passes the gate.
  void End(size_t call) {
    calls_[call]->EndOne();
    EXPECT_TRUE(calls_[call]->Passes());
  }
  std::string AwaitFailure() {
    std::unique_lock<std::mutex> lock(mu_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::nanoseconds(kLong), [&] { return !failure_.empty(); }));
    return failure_;
  }
  bool HasFailed() {
    const std::lock_guard<std::mutex> lock(mu_);
    return !failure_.empty();
  }
  std::vector<size_t> Forgotten(size_t count) {
    std::unique_lock<std::mutex> lock(mu_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::nanoseconds(kLong), [&] { return forgotten_.size() >= count; }));
    return forgotten_;
  }
  size_t IndexOf(const GraphReplays::Captured& captured) const {
    const auto is_it = [&](const auto& each) { return each.get() == captured.call; };
    return static_cast<size_t>(std::ranges::find_if(calls_, is_it) - calls_.begin());
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<size_t> begun_;
  std::vector<size_t> forgotten_;
  std::string failure_;
  std::vector<std::unique_ptr<StreamWords>> words_;
  std::vector<std::unique_ptr<TestCall>> calls_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<std::unique_ptr<CallOptions>> options_;
  GraphReplays replays_{{[this](const GraphReplays::Captured& captured) {
                           if (!captured.call->Begin(1)) return;
                           const std::lock_guard<std::mutex> lock(mu_);
                           begun_.push_back(IndexOf(captured));
                           changed_.notify_all();
                         },
                         [this](const GraphReplays::Captured& captured) {
                           const std::lock_guard<std::mutex> lock(mu_);
                           forgotten_.push_back(IndexOf(captured));
                           changed_.notify_all();
                         },
                         [this](const std::string& why) {
                           for (const auto& call : calls_) call->End();
                           const std::lock_guard<std::mutex> lock(mu_);
                           failure_ = why;
                           changed_.notify_all();
                         }}};
};

TEST_F(GraphReplaysTest, CollectivesOfACaptureBeginInItsOrderInEachLaunch) {
  Capture({{Kind::kAllreduce}, {Kind::kBroadcast}, {Kind::kAllgather}});
  std::vector<size_t> expected;
  for (size_t launch = 0; launch < 5; ++launch) {
    for (const size_t call : {2, 1, 0}) Launch(call);
    for (const size_t call : {0, 1, 2}) expected.push_back(call);
    EXPECT_EQ(Begun(expected.size()), expected);
    for (const size_t call : {1, 0, 2}) End(call);
  }
}

TEST_F(GraphReplaysTest, ALaterLaunchOfOneCallWaitsForTheEarlierOneOfOthers) {
  Capture({{Kind::kAllreduce}, {Kind::kBroadcast}});
  Launch(0);
  EXPECT_EQ(Begun(1), (std::vector<size_t>{0}));
  End(0);
  Launch(0);  // As a second graph's; the first launch has not come to the other call.
  Launch(1);
  EXPECT_EQ(Begun(3), (std::vector<size_t>{0, 1, 0}));
}

TEST_F(GraphReplaysTest, MessagesKeepTheOrderOfAPeerAndADirection) {
  Capture({{Kind::kSend, 1}, {Kind::kSend, 2}, {Kind::kRecv, 1}, {Kind::kAllreduce}, {Kind::kSend, 1}});
  Launch(4);  // Waits for the first.
  Launch(3);
  EXPECT_EQ(Begun(1), (std::vector<size_t>{3}));
  Launch(2);
  EXPECT_EQ(Begun(2), (std::vector<size_t>{3, 2}));
  Launch(1);
  EXPECT_EQ(Begun(3), (std::vector<size_t>{3, 2, 1}));
  Launch(0);
  EXPECT_EQ(Begun(5), (std::vector<size_t>{3, 2, 1, 0, 4}));
}

TEST_F(GraphReplaysTest, AReceiveFromAnyRankKeepsItsOrderWithThoseFromEach) {
  Capture({{Kind::kRecv, 1}, {Kind::kRecv, ANNULUS_ANY_PEER}, {Kind::kRecv, 2}, {Kind::kRecv, 1}, {Kind::kSend, 2}});
  Launch(2);
  Launch(3);
  Launch(4);
  EXPECT_EQ(Begun(1), (std::vector<size_t>{4}));
  Launch(1);
  Launch(0);
  const std::vector<size_t> begun = Begun(5);
  EXPECT_EQ((std::vector<size_t>{begun[1], begun[2]}), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(begun[3] + begun[4], 5U);
}

TEST_F(GraphReplaysTest, CapturesDoNotWaitForEachOther) {
  Capture({{Kind::kAllreduce}, {Kind::kAllreduce}}, kLong, 1);
  Capture({{Kind::kAllreduce}}, kLong, 2);
  Launch(1);
  Launch(2);
  EXPECT_EQ(Begun(1), (std::vector<size_t>{2}));
}

TEST_F(GraphReplaysTest, ACallThatCouldNotBeCapturedIsWaitedForByNone) {
  Capture({{Kind::kAllreduce}, {Kind::kBroadcast}});
  EXPECT_TRUE(replays_.Remove(calls_[0].get()));
  EXPECT_FALSE(replays_.Remove(calls_[0].get()));
  Launch(0);  // The program launches what it has all the same.
  for (size_t launch = 1; launch < 4; ++launch) {
    Launch(1);
    EXPECT_EQ(Begun(launch), std::vector<size_t>(launch, 1));
    End(1);
  }
}

TEST_F(GraphReplaysTest, ANodeThatWasLeftOutEndsTheCommunicatorAtTheDeadline) {
  Capture({{Kind::kAllreduce, 0, "first"}, {Kind::kBroadcast, 0, "second"}}, kSecond);
  const Nanoseconds before = Now();
  Launch(1);
  const std::string why = AwaitFailure();
  EXPECT_GE(Now() - before, kSecond);
  EXPECT_NE(why.find("waited 1000 ms for its turn at broadcast 'second'"), std::string::npos) << why;
  EXPECT_NE(why.find("no launch came to allreduce 'first'"), std::string::npos) << why;
  EXPECT_TRUE(calls_[1]->Passes());
  EXPECT_EQ(Begun(0), std::vector<size_t>());
  // The graph goes all the same.
  for (const auto& call : calls_) call->NoteEnd();
  EXPECT_EQ(Forgotten(2).size(), 2U);
}

TEST_F(GraphReplaysTest, ALaunchThatIsBegunInTimeEndsNothing) {
  Capture({{Kind::kAllreduce}, {Kind::kBroadcast}}, kSecond);
  Launch(1);
  Launch(0);
  EXPECT_EQ(Begun(2), (std::vector<size_t>{0, 1}));
  const Deadline until = DeadlineAfter(kSecond + kSecond / 2);
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait_for(lock, std::chrono::nanoseconds(until - Now()), [&] { return Now() > until; });
  EXPECT_EQ(failure_, "");
}

TEST_F(GraphReplaysTest, ALaunchWhileAnEarlierOneIsUnderWayEndsTheCommunicator) {
  Capture({{Kind::kAllreduce, 0, "mine"}});
  Launch(0);
  EXPECT_EQ(Begun(1), std::vector<size_t>{0});
  Launch(0);  // The calls have not ended.
  const std::string why = AwaitFailure();
  EXPECT_NE(why.find("allreduce 'mine'"), std::string::npos) << why;
  EXPECT_NE(why.find("two executable graphs"), std::string::npos) << why;
  // Both launches go on, though the gate opens once for the calls that end.
  End(0);
  const Deadline until = DeadlineAfter(kLong);
  while (!calls_[0]->IsOpenForGood() && Now() < until) std::this_thread::yield();
  EXPECT_TRUE(calls_[0]->IsOpenForGood());
}

// Else it would find the gate open that was opened for the earlier one, and that one closes it behind the later's back.
TEST_F(GraphReplaysTest, ALaunchIsNotBegunBeforeTheGateIsClosed) {
  Capture({{Kind::kAllreduce}});
  Launch(0);
  EXPECT_EQ(Begun(1), std::vector<size_t>{0});
  calls_[0]->EndOne();
  Launch(0);
  const Deadline until = DeadlineAfter(kSecond / 4);
  {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait_for(lock, std::chrono::nanoseconds(until - Now()), [&] { return begun_.size() > 1; });
    EXPECT_EQ(begun_.size(), 1U);
  }
  EXPECT_TRUE(calls_[0]->Passes());
  EXPECT_EQ(Begun(2).size(), 2U);
  End(0);
  EXPECT_FALSE(HasFailed());
}

TEST_F(GraphReplaysTest, AGateThatNeverClosesEndsTheCommunicatorAtTheDeadline) {
  Capture({{Kind::kAllreduce}}, kSecond);
  Launch(0);
  EXPECT_EQ(Begun(1), std::vector<size_t>{0});
  calls_[0]->EndOne();
  Launch(0);
  EXPECT_NE(AwaitFailure().find("an earlier launch has not left it"), std::string::npos) << failure_;
}

TEST_F(GraphReplaysTest, GraphsThatAreGoneAreForgottenWhenTheirCallsHaveEnded) {
  Capture({{Kind::kAllreduce}, {Kind::kBroadcast}}, kLong, 1);
  Capture({{Kind::kAllreduce}}, kLong, 2);
  Launch(0);
  EXPECT_EQ(Begun(1), std::vector<size_t>{0});
  calls_[0]->OpenForGood();
  calls_[0]->NoteEnd();  // The launch has passed, its calls are under way.
  calls_[1]->NoteEnd();
  EXPECT_EQ(Forgotten(1), std::vector<size_t>{1});
  calls_[0]->EndOne();
  Launch(2);  // Whatever rings.
  EXPECT_EQ(Forgotten(2), (std::vector<size_t>{1, 0}));
  EXPECT_EQ(Begun(2), (std::vector<size_t>{0, 2}));
}

}  // namespace
}  // namespace annulus
