#include "collectives/calls/call_queue.h"

#include <chrono>

#include "collectives/calls/look_pauses.h"

namespace annulus {
namespace {

// Looks without anything new in the queue, after which the progress thread sleeps until it is woken.
constexpr int kQuietLooks = 50;

// But not longer than this: a call may have come for which nobody was woken, and whose owner does not come.
constexpr std::chrono::seconds kLongestSleep{1};

std::chrono::steady_clock::time_point TimePoint(Deadline deadline) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline));
}

}  // namespace

CallQueue::Turn::Turn(CallQueue* queue, AwaitWork) : queue_(queue), lock_(queue->mu_) {
  uint64_t seen = queue->watch_.activity;
  uint64_t seen_queued = queue->watch_.queued;
  LookPauses pauses;
  for (int quiet = 0;;) {
    const bool is_free = !queue->is_driving_ && queue->HasWork();
    const bool is_left_alone = queue->watch_.activity == seen && queue->helpers_.load() == 0;
    if (is_free && (is_left_alone || queue->watch_.is_urgent || queue->is_stopping_ || queue->config_.by_priority))
      break;
    const bool is_driven_long = queue->watch_.activity == seen && queue->is_driving_;
    quiet = queue->watch_.queued == seen_queued ? quiet + 1 : 0;
    const std::chrono::microseconds pause = pauses.Next(is_free, queue->watch_.activity != seen);
    seen = queue->watch_.activity;
    seen_queued = queue->watch_.queued;
    if ((quiet < kQuietLooks || is_free) && !is_driven_long && !queue->config_.by_priority) {
      queue->watch_.wakes.wait_for(lock_, pause);
    } else {
      queue->watch_.is_asleep = true;
      queue->watch_.wakes.wait_for(lock_, kLongestSleep);
      queue->watch_.is_asleep = false;
    }
  }
  queue->watch_.is_urgent = false;
  Lengthen(Call());
}

CallQueue::Turn::Turn(CallQueue* queue, const Helps& helps) : queue_(queue), lock_(queue->mu_) {
  const bool may_drive = !queue->config_.by_priority;
  const auto ready = [&] { return helps.is_over() || (may_drive && !queue->is_driving_); };
  ++queue->helpers_;
  if (may_drive && queue->is_driving_) {
    queue->AddNews();
    queue->config_.nudge();
  }
  if (helps.until == kNoDeadline) {
    queue->ended_.wait(lock_, ready);
  } else {
    queue->ended_.wait_until(lock_, TimePoint(helps.until), ready);
  }
  --queue->helpers_;
  if (may_drive && !queue->is_driving_ && !helps.is_over()) {
    Lengthen(Call());
    return;
  }
  // The progress thread may have left the work to this one.
  if (queue->watch_.is_asleep && queue->HasWork()) queue->watch_.wakes.notify_one();
  lock_.unlock();
}

void CallQueue::Turn::KeepMessage(Request* message, bool is_left) {
  queue_->EraseMessage(message);
  queue_->messages_.taken_on.push_back(message);
  ++queue_->watch_.activity;  // The progress thread does not take the turn from it meanwhile.
  if (is_left) queue_->AddedWork();
}

void CallQueue::EndDrive() {
  is_driving_ = false;
  driving_thread_.store(std::thread::id(), std::memory_order_relaxed);
  driven_ = Call();
  ++watch_.activity;
  if (helpers_.load() > 0) ended_.notify_all();
  if (watch_.is_urgent && !HasReplayed()) watch_.is_urgent = false;
  if ((watch_.is_asleep || watch_.is_urgent) && HasWork()) watch_.wakes.notify_one();
}

bool CallQueue::HasReplayed() const {
  const auto has = [](const RequestList& list) {
    for (const Request* each = list.front(); each != nullptr; each = each->next) {
      if (IsReplayed(*each)) return true;
    }
    return false;
  };
  return has(calls_) || has(messages_.posted);
}

void CallQueue::AddedWork(bool wakes) {
  AddNews();
  ++watch_.activity;
  ++watch_.queued;
  if (is_driving_) {  // The end of that turn wakes the progress thread, if it sleeps.
    if (!IsDrivenByThisThread()) config_.nudge();
    return;
  }
  if ((wakes && watch_.is_asleep) || watch_.is_urgent) watch_.wakes.notify_one();
}

void CallQueue::WakeHelpers() {
  const std::lock_guard<Mutex> lock(mu_);
  ended_.notify_all();
}

void CallQueue::Remove(Request* request, Code code) {
  const std::lock_guard<Mutex> lock(mu_);
  CountRequest(*request, code);
  calls_.erase(request);
}

// A fused request counts as the requests that it replaced, and an agreement as those that it holds.
void CallQueue::CountRequest(const Request& request, Code code) {
  if (request.fused_calls > 0) {
    const bool ok = code == Code::kOk;
    const size_t bytes = request.call.count * TypeBytes(request.call.type);
    return config_.monitor->CountEnd(false, ok, ok ? bytes : 0, request.fused_calls);
  }
  if (request.members.empty()) Count(request.arguments, code);
  for (const Request* member : request.members) Count(member->arguments, code);
  for (const Request* held : request.held) CountRequest(*held, code);
}

void CallQueue::CountEnd(const Request& request, Code code) {
  const std::lock_guard<Mutex> lock(mu_);
  CountRequest(request, code);
}

bool CallQueue::Add(Request* request) {
  const std::lock_guard<Mutex> lock(mu_);
  if (is_stopping_) return false;
  AddHeld(request);
  return true;
}

void CallQueue::AddHeld(Request* request, bool wakes) {
  request->number = ++number_;
  calls_.push_back(request);
  if (IsReplayed(*request)) Overtake(request);
  AddedWork(wakes);
}

void CallQueue::Overtake(Request* last) {
  watch_.is_urgent = true;
  Request* first = calls_.front();
  while (first->IsReady() && first != last) first = first->next;
  if (first == last) return;
  if (first == calls_.front()) {
    has_overtaken_.store(true, std::memory_order_release);
    // It is driven later, with a later number, as on ranks that have not come to it.
    if (first->call.sequence != 0) --sequence_;
    first->call.sequence = 0;
  }
  while (first != last) {
    Request* const next = first->next;
    calls_.erase(first);
    calls_.push_back(first);
    first = next;
  }
}

bool CallQueue::PostMessage(Request* message) {
  const std::lock_guard<Mutex> lock(mu_);
  if (is_stopping_) return false;
  PostHeld(message);
  return true;
}

void CallQueue::EndMessage(Request* message, Code code) {
  const std::lock_guard<Mutex> lock(mu_);
  Count(message->arguments, code);
  EraseMessage(message);
}

bool CallQueue::Stop() {
  const std::lock_guard<Mutex> lock(mu_);
  const bool is_busy = is_driving_ || !calls_.empty() || HasAnyMessage();
  is_stopping_ = true;
  AddNews();
  watch_.wakes.notify_one();
  return is_busy;
}

bool CallQueue::is_stopping() const {
  const std::lock_guard<Mutex> lock(mu_);
  return is_stopping_;
}

bool CallQueue::HasCalls() const {
  const std::lock_guard<Mutex> lock(mu_);
  return !calls_.empty();
}

bool CallQueue::HasMessages() const {
  const std::lock_guard<Mutex> lock(mu_);
  return HasAnyMessage();
}

Call CallQueue::Current() const {
  const std::lock_guard<Mutex> lock(mu_);
  if (driven_.sequence != 0 || calls_.empty()) return driven_;
  Call first = calls_.front()->call;
  if (!config_.by_priority && first.sequence == 0) first.sequence = sequence_ + 1;
  return first;
}

Request* CallQueue::DriveFirst(bool* is_stopping) {
  const std::lock_guard<Mutex> lock(mu_);
  *is_stopping = is_stopping_;
  has_overtaken_.store(false, std::memory_order_release);
  if (calls_.empty()) return nullptr;
  NumberFirst();
  driven_ = calls_.front()->call;
  return calls_.front();
}

void CallQueue::SetDriven(const Call& call) {
  const std::lock_guard<Mutex> lock(mu_);
  driven_ = call;
}

uint64_t CallQueue::NextSequence() {
  const std::lock_guard<Mutex> lock(mu_);
  return ++sequence_;
}

void CallQueue::GiveSequence(Request* request) {
  const std::lock_guard<Mutex> lock(mu_);
  request->call.sequence = ++sequence_;
}

void CallQueue::Release(Request* agreement) {
  const std::lock_guard<Mutex> lock(mu_);
  calls_.erase(agreement);
  for (auto each = agreement->held.rbegin(); each != agreement->held.rend(); ++each) calls_.push_front(*each);
  agreement->held.clear();
  AddNews();
}

void CallQueue::Drop(Request* agreement) {
  const std::lock_guard<Mutex> lock(mu_);
  calls_.erase(agreement);
}

Request* CallQueue::FirstReleased() const {
  const std::lock_guard<Mutex> lock(mu_);
  return calls_.front()->number == 0 ? calls_.front() : nullptr;
}

Request* CallQueue::FirstByPriority() const {
  const std::lock_guard<Mutex> lock(mu_);
  Request* first = calls_.front();
  for (Request* each = first; each != nullptr; each = each->next) {
    if (each->options.priority > first->options.priority) first = each;
  }
  return first;
}

bool CallQueue::IsFirst(const Request* request) const {
  const std::lock_guard<Mutex> lock(mu_);
  return calls_.front() == request;
}

Request* CallQueue::Find(uint64_t number) const {
  const std::lock_guard<Mutex> lock(mu_);
  Request* found = calls_.front();
  while (found != nullptr && found->number != number) found = found->next;
  return found;
}

Request* CallQueue::FirstPosted() const {
  const std::lock_guard<Mutex> lock(mu_);
  return messages_.posted.front();
}

void CallQueue::AcceptFirst() {
  const std::lock_guard<Mutex> lock(mu_);
  Request* const first = messages_.posted.front();
  EraseMessage(first);
  messages_.taken_on.push_back(first);
}

Request* CallQueue::TakeMessage() {
  const std::lock_guard<Mutex> lock(mu_);
  Request* const taken = messages_.taken_on.empty() ? messages_.posted.front() : messages_.taken_on.front();
  if (taken != nullptr) EraseMessage(taken);
  return taken;
}

}  // namespace annulus
