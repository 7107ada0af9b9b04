// CallQueue: the order in which the calls of one communicator are driven: whose turn it is, what waits for its turn,
// and the number that each call has. One thread at a time has the turn; it drives everything, messages too.
//
// A request waits here from when it is queued until its turn is over; a message, which waits for no turn, until it has
// ended.
//
// Threads: any, by a lock of its own; some functions are for the thread that has the turn only. The lock orders the
// memory accesses of those who have the turn one after another.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "collectives/comm/request.h"
#include "collectives/observe/monitor.h"

namespace annulus {

struct CallQueueConfig {
  int rank = 0;
  int nranks = 1;
  bool by_priority = false;    // Calls get their numbers when they are driven, not when they are queued.
  Monitor* monitor = nullptr;  // Counts the calls that end. Outlives the queue.
  // Makes the thread that drives look at what is new. Called with the lock held; must not block.
  std::function<void()> nudge;
};

class CallQueue {
 public:
  explicit CallQueue(CallQueueConfig config) : config_(std::move(config)) {}

  // The turn, for as long as it lives. A short turn holds the queue's lock; Lengthen lets others queue meanwhile.
  class Turn {
   public:
    struct AwaitWork {};

    // Takes a short turn, if nobody has the turn and nothing waits for one. Does not block.
    explicit Turn(CallQueue* queue) : queue_(queue), lock_(queue->mu_) {
      if (queue->is_driving_ || !queue->calls_.empty()) lock_.unlock();
    }
    // Takes a long turn once nobody has it and there is something to do: calls, messages, or that the queue is
    // stopping.
    Turn(CallQueue* queue, AwaitWork);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      if (is_long_) End();
    }

    explicit operator bool() const { return is_long_ || lock_.owns_lock(); }

    // The number of the next collective. In a short turn.
    uint64_t NextSequence() { return ++queue_->sequence_; }

    // From here on others may queue. `call` is what is driven; sequence 0: messages.
    void Lengthen(const Call& call) {
      queue_->BeginDrive(call);
      is_long_ = true;
      lock_.unlock();
    }

    // Gives the turn back.
    void End();
    // Counts the call that it was for, and gives the turn back. Inline, for the smallest calls.
    void EndCall(const CallArguments& arguments, Code code) {
      if (is_long_) {
        lock_.lock();
        queue_->EndDrive();
        is_long_ = false;
      }
      queue_->Count(arguments, code);
      lock_.unlock();
    }
    // The same for a request that was queued; it leaves the queue. In a long turn.
    void EndRequest(const Request* request, Code code);

   private:
    CallQueue* const queue_;
    std::unique_lock<std::mutex> lock_;
    bool is_long_ = false;
  };

  // Queues a collective: gives it a number and, unless by priority, a sequence number.
  void Add(Request* request);
  // A message: to be posted, and then announced by Announce.
  void AddMessage(Request* message);
  void Announce();
  // The call has ended without a turn; counts it.
  void EndMessage(Request* message, Code code);
  void CountEnd(const Request& request, Code code);

  // Makes all later turns end soon. Returns whether something is queued or driven.
  bool Stop();
  bool is_stopping() const;
  bool HasCalls() const;
  bool HasMessages() const;
  // Takes no lock: other threads' turns do not matter.
  bool IsDrivenByThisThread() const {
    return driving_thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  // The call that is driven or, if none, the first in the queue; sequence 0 when there is none either.
  Call Current() const;

  // Whether something has happened that one who drives messages must look at; it is noticed then. Takes no lock.
  bool Notice() {
    return has_news_.load(std::memory_order_relaxed) && has_news_.exchange(false, std::memory_order_acquire);
  }
  void AddNews() { has_news_.store(true, std::memory_order_release); }

  // By the thread that has a long turn:
  // What is driven from now on.
  void SetDriven(const Call& call);
  uint64_t NextSequence();
  // The same, as the number of a request that is queued.
  void GiveSequence(Request* request);
  // The first in the order of the calls, null when there is none; of the highest priority; of that number, or null.
  Request* First() const;
  Request* FirstByPriority() const;
  Request* Find(uint64_t number) const;
  // All messages, which leave the queue.
  std::vector<Request*> TakeMessages();

 private:
  // With mu_ held.
  void BeginDrive(const Call& call) {
    is_driving_ = true;
    driving_thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    driven_ = call;
  }
  void EndDrive();
  void Count(const CallArguments& arguments, Code code) {
    if (arguments.kind == CollectiveKind::kNone) return;  // A group's own request.
    const bool ok = code == Code::kOk;
    const size_t data_bytes = ok ? SendBytes(arguments, config_.rank, config_.nranks) : 0;
    config_.monitor->CountEnd(IsMessage(arguments.kind), ok, data_bytes);
  }
  void CountRequest(const Request& request, Code code);
  bool HasWork() const { return is_stopping_ || !calls_.empty() || !messages_.empty(); }

  const CallQueueConfig config_;
  mutable std::mutex mu_;
  std::condition_variable changed_;                // There is work, or the turn is free.
  std::atomic<bool> has_news_{false};              // For Notice.
  bool is_driving_ = false;                        // Somebody has a long turn.
  std::atomic<std::thread::id> driving_thread_{};  // While is_driving_.
  Call driven_;                                    // While is_driving_, if it is a collective.
  bool is_stopping_ = false;
  uint64_t sequence_ = 0;       // The latest sequence number.
  uint64_t number_ = 0;         // Collectives queued so far.
  std::deque<Request*> calls_;  // In the order of the calls.
  std::unordered_set<Request*> messages_;
};

}  // namespace annulus
