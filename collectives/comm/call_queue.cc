#include "collectives/comm/call_queue.h"

#include <algorithm>

namespace annulus {

CallQueue::Turn::Turn(CallQueue* queue, AwaitWork) : queue_(queue), lock_(queue->mu_) {
  queue->changed_.wait(lock_, [queue] { return queue->HasWork() && !queue->is_driving_; });
  Lengthen(Call());
}

void CallQueue::Turn::End() {
  if (is_long_) {
    lock_.lock();
    queue_->EndDrive();
    is_long_ = false;
  }
  if (lock_.owns_lock()) lock_.unlock();
}

void CallQueue::Turn::EndRequest(const Request* request, Code code) {
  lock_.lock();
  queue_->CountRequest(*request, code);
  queue_->calls_.erase(std::find(queue_->calls_.begin(), queue_->calls_.end(), request));
  queue_->EndDrive();
  is_long_ = false;
  lock_.unlock();
}

void CallQueue::EndDrive() {
  is_driving_ = false;
  driving_thread_.store(std::thread::id(), std::memory_order_relaxed);
  driven_ = Call();
  if (HasWork()) changed_.notify_all();
}

// A fused request counts as the requests that it replaced.
void CallQueue::CountRequest(const Request& request, Code code) {
  if (request.members.empty()) Count(request.arguments, code);
  for (const Request* member : request.members) Count(member->arguments, code);
}

void CallQueue::CountEnd(const Request& request, Code code) {
  const std::lock_guard<std::mutex> lock(mu_);
  CountRequest(request, code);
}

void CallQueue::Add(Request* request) {
  const std::lock_guard<std::mutex> lock(mu_);
  request->number = ++number_;
  if (!config_.by_priority) request->call.sequence = ++sequence_;
  calls_.push_back(request);
  AddNews();
  if (is_driving_) config_.nudge();
  changed_.notify_all();
}

void CallQueue::AddMessage(Request* message) {
  const std::lock_guard<std::mutex> lock(mu_);
  messages_.insert(message);
}

void CallQueue::Announce() {
  const std::lock_guard<std::mutex> lock(mu_);
  AddNews();
  if (is_driving_) config_.nudge();
  changed_.notify_all();
}

void CallQueue::EndMessage(Request* message, Code code) {
  const std::lock_guard<std::mutex> lock(mu_);
  Count(message->arguments, code);
  messages_.erase(message);
}

bool CallQueue::Stop() {
  const std::lock_guard<std::mutex> lock(mu_);
  const bool is_busy = is_driving_ || !calls_.empty() || !messages_.empty();
  is_stopping_ = true;
  AddNews();
  changed_.notify_all();
  return is_busy;
}

bool CallQueue::is_stopping() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return is_stopping_;
}

bool CallQueue::HasCalls() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return !calls_.empty();
}

bool CallQueue::HasMessages() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return !messages_.empty();
}

Call CallQueue::Current() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return driven_.sequence == 0 && !calls_.empty() ? calls_.front()->call : driven_;
}

void CallQueue::SetDriven(const Call& call) {
  const std::lock_guard<std::mutex> lock(mu_);
  driven_ = call;
}

uint64_t CallQueue::NextSequence() {
  const std::lock_guard<std::mutex> lock(mu_);
  return ++sequence_;
}

void CallQueue::GiveSequence(Request* request) {
  const std::lock_guard<std::mutex> lock(mu_);
  request->call.sequence = ++sequence_;
}

Request* CallQueue::First() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return calls_.empty() ? nullptr : calls_.front();
}

Request* CallQueue::FirstByPriority() const {
  const std::lock_guard<std::mutex> lock(mu_);
  const auto first = std::max_element(calls_.begin(), calls_.end(), [](const Request* left, const Request* right) {
    return left->options.priority != right->options.priority ? left->options.priority < right->options.priority
                                                             : left->number > right->number;
  });
  return first == calls_.end() ? nullptr : *first;
}

Request* CallQueue::Find(uint64_t number) const {
  const std::lock_guard<std::mutex> lock(mu_);
  const auto found = std::find_if(calls_.begin(), calls_.end(),
                                  [number](const Request* request) { return request->number == number; });
  return found != calls_.end() ? *found : nullptr;
}

std::vector<Request*> CallQueue::TakeMessages() {
  const std::lock_guard<std::mutex> lock(mu_);
  std::vector<Request*> taken(messages_.begin(), messages_.end());
  messages_.clear();
  return taken;
}

}  // namespace annulus
