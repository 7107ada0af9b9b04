// The progress thread of Dispatcher, how messages are driven to their end, and the order in which queued calls are
// taken.
//
// With priorities, calls must overtake in the same way on all ranks, though the queues differ at any moment. So rank 0
// chooses the next call and broadcasts its number, which is the same on all ranks.
#include <algorithm>
#include <functional>

#include "collectives/comm/dispatcher.h"

namespace annulus {
namespace {

// Times between looks at the stream for which the next call waits: a word in memory, of which nothing tells.
constexpr Nanoseconds kFirstPause = 20 * kMicrosecond;
constexpr Nanoseconds kLongestPause = 500 * kMicrosecond;
// A stream may be busy for long.
constexpr WaitPolicy kStreamPolicy{0, 2};

}  // namespace

void Dispatcher::ProgressThread() {
  const std::function<bool()> is_wanted = [this] { return queue_->IsWanted(); };
  for (bool is_over = false; !is_over;) {
    {
      const CallQueue::Turn turn(queue_, CallQueue::Turn::AwaitWork());
      const bool is_stopping = queue_->is_stopping();
      // Stop may not have come to this yet. Else a collective that somebody has begun would still move messages.
      if (is_stopping) driver_.Interrupt();
      DriveQueue({background_policy_, {&is_wanted}});
      // Collectives end first: they may still use links, which may be closed for the messages.
      is_over = is_stopping && !queue_->HasCalls();
      if (is_over) FailMessages(Code::kAborted);
    }
    ended_();
  }
}

void Dispatcher::DriveMessages(const std::function<bool()>& over, const Manner& manner) {
  // A communicator that failed before this turn began must not be driven any more.
  if (failures_->ended()) return FailMessages(failures_->verdict().code);
  queue_->AddNews();
  Verdict verdict;
  const std::function<bool()>* const is_enough = manner.patience.is_over;
  const auto asks = [&] { return (queue_->Notice() && over()) || (is_enough != nullptr && (*is_enough)()); };
  const std::function<bool()> is_over = std::ref(asks);
  if (!driver_.RunMessages(manner.policy, {&is_over, manner.patience.wake_at}, &verdict)) Fail(verdict);
}

void Dispatcher::FailMessages(Code code) {
  // A getter may have seen the verdict first, and then nobody has called Fail.
  if (queue_->HasMessages()) StopDevices();
  // Without a verdict their buffers are the user's again before the links are closed.
  for (const auto& endpoint : setup_->links().all()) {
    if (InPlace* const in_place = endpoint->shortcuts().in_place; in_place != nullptr) in_place->Withdraw();
  }
  while (Request* const message = queue_->TakeMessage()) Drop(message, code);
}

bool Dispatcher::AwaitStream(const Request& request, const Manner& manner, bool may_pause) {
  const std::function<bool()>& is_enough = *manner.patience.is_over;
  bool is_over = false;
  for (Nanoseconds pause = kFirstPause; !request.IsReady(); pause = std::min(2 * pause, kLongestPause)) {
    if (failures_->ended()) return false;
    const Deadline until = Now() + pause;
    const auto over = [&] {
      is_over = is_over || (may_pause && (is_enough() || queue_->HasOvertaken()));
      return is_over || request.IsReady() || Now() >= until;
    };
    const std::function<bool()> asks = std::ref(over);
    Verdict verdict;
    const Deadline wake_at = std::min(until, manner.patience.wake_at);
    if (!driver_.RunMessages(kStreamPolicy, {&asks, wake_at}, &verdict)) Fail(verdict);
    if (is_over) return false;
  }
  return true;
}

// Chooses the next call to drive, the same on all ranks.
Code Dispatcher::ChooseNext(Request** next) {
  Request* const released = queue_->FirstReleased();
  uint64_t number = released != nullptr ? 0 : queue_->FirstByPriority()->number;
  if (nranks() > 1 && released == nullptr) {
    const Code code = AgreeOnNumber(&number);
    if (code != Code::kOk) return code;
  }
  *next = released != nullptr ? released : queue_->Find(number);
  queue_->GiveSequence(*next);
  queue_->SetDriven((*next)->call);
  return Code::kOk;
}

// Sets *number to the number chosen by rank 0, and waits until that call is queued here too.
Code Dispatcher::AgreeOnNumber(uint64_t* number) {
  CallArguments announcement;
  announcement.kind = CollectiveKind::kBroadcast;
  announcement.sendbuf = announcement.recvbuf = number;
  announcement.count = 1;
  announcement.type = DataType::kInt64;
  const Call call = CallOf(announcement, nranks(), queue_->NextSequence());
  queue_->SetDriven(call);
  Code code = *Drive(announcement, nullptr, call, {background_policy_, {}});
  queue_->SetDriven(Call());
  if (code != Code::kOk) return code;
  const auto over = [this, number] { return queue_->is_stopping() || queue_->Find(*number) != nullptr; };
  // If that call never comes, the next call of the other ranks is late, and the verdict ends this wait.
  if (!over()) DriveMessages(over, {background_policy_, {}});
  if (queue_->is_stopping()) return Code::kAborted;
  failures_->CheckEnded(&code);
  return code;
}

}  // namespace annulus
