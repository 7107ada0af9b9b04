#include "collectives/calls/callbacks.h"

#include <chrono>
#include <utility>

#include "base/thread.h"

namespace annulus {
namespace {

constexpr std::chrono::milliseconds kLookEvery(1);
constexpr int kQuietLooks = 20;

}  // namespace

Callbacks::~Callbacks() {
  Finish();
  for (Place* each : {ready_.first, early_.first, spent_}) {
    while (each != nullptr) const std::unique_ptr<Place> last(std::exchange(each, each->next));
  }
}

Status Callbacks::Start() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (thread_.joinable()) return Status();
  const Status status = StartThread(
      "the thread of callbacks", [this] { Run(); }, &thread_);
  has_started_.store(status.ok(), std::memory_order_release);
  return status;
}

std::unique_ptr<Callbacks::Place> Callbacks::Add(const Callback& callback, std::unique_ptr<Place> place,
                                                 bool may_wait) {
  place->callback = callback;
  place->next = nullptr;
  const std::lock_guard<std::mutex> lock(mu_);
  if (callback.place != nullptr && callback.place == entering_) {
    early_.Append(place.release());
  } else {
    ready_.Append(place.release());
    if (may_wait) looks_ = kQuietLooks;
    if (!may_wait || is_asleep_) changed_.notify_one();
  }
  if (spent_ != nullptr) place.reset(std::exchange(spent_, spent_->next));
  return place;
}

void Callbacks::Enter(const void* place) {
  const std::lock_guard<std::mutex> lock(mu_);
  entering_ = place;
}

void Callbacks::Entered() {
  const std::lock_guard<std::mutex> lock(mu_);
  entering_ = nullptr;
  if (early_.first == nullptr) return;
  ready_.Append(early_.first);
  ready_.last = early_.last;
  early_ = List();
  changed_.notify_one();
}

void Callbacks::Hold() {
  const std::lock_guard<std::mutex> lock(mu_);
  is_held_ = true;
}

void Callbacks::AwaitBegun() {
  std::unique_lock<std::mutex> lock(mu_);
  returned_.wait(lock, [this] { return !has_begun_; });
}

void Callbacks::Finish() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    finishing_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Callbacks::Run() {
  id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  std::unique_lock<std::mutex> lock(mu_);
  for (;;) {
    while (!finishing_ && (ready_.first == nullptr || is_held_)) {
      if (looks_ > 0) {
        --looks_;
        changed_.wait_for(lock, kLookEvery);
        continue;
      }
      is_asleep_ = true;
      changed_.wait(lock);
      is_asleep_ = false;
    }
    if (ready_.first == nullptr) return;
    Place* const place = std::exchange(ready_.first, ready_.first->next);
    const Callback callback = place->callback;
    place->next = std::exchange(spent_, place);
    has_begun_ = true;
    lock.unlock();
    callback.function(callback.context, static_cast<annulus_status_t>(callback.code));
    lock.lock();
    has_begun_ = false;
    if (is_held_) returned_.notify_all();
  }
}

}  // namespace annulus
