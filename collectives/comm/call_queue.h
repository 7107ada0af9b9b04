// CallQueue: the order in which the calls of one communicator are driven: who has the turn, which calls wait for it,
// and the number of each call. One thread at a time has the turn; it drives everything, including messages.
//
// A request stays here from when it is queued until its turn is over. A message does not wait for a turn; it stays
// until it has ended.
//
// Threads: any; the queue has its own lock. Some functions are only for the thread that has the turn. The lock orders
// the memory accesses of successive owners of the turn.
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
  bool by_priority = false;    // Calls get their numbers when driven, not when queued.
  Monitor* monitor = nullptr;  // Counts the calls that end. Outlives the queue.
  // Makes the driving thread look at what is new. Called with the lock held; must not block.
  std::function<void()> nudge;
};

class CallQueue {
 public:
  explicit CallQueue(CallQueueConfig config) : config_(std::move(config)) {}

  // The turn; its lifetime is the object's. A short turn holds the queue's lock; Lengthen releases it, so that others
  // can queue meanwhile.
  class Turn {
   public:
    struct AwaitWork {};

    // Takes a short turn if nobody has the turn and nothing waits for it. Does not block.
    explicit Turn(CallQueue* queue) : queue_(queue), lock_(queue->mu_) {
      if (queue->is_driving_ || !queue->calls_.empty()) lock_.unlock();
    }
    // Takes a long turn once nobody has the turn and there is something to do: calls, messages, or the queue is
    // stopping.
    Turn(CallQueue* queue, AwaitWork);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      if (is_long_) End();
    }

    explicit operator bool() const { return is_long_ || lock_.owns_lock(); }

    // Number of the next collective. In a short turn.
    uint64_t NextSequence() { return ++queue_->sequence_; }

    // Lets others queue from here on. `call` is what is driven; sequence 0: messages.
    void Lengthen(const Call& call) {
      queue_->BeginDrive(call);
      is_long_ = true;
      lock_.unlock();
    }

    // Gives the turn back.
    void End();
    // Counts the call of this turn, and gives the turn back. Inline, for the smallest calls.
    void EndCall(const CallArguments& arguments, Code code) {
      if (is_long_) {
        lock_.lock();
        queue_->EndDrive();
        is_long_ = false;
      }
      queue_->Count(arguments, code);
      lock_.unlock();
    }
    // The same for a queued request, which leaves the queue. In a long turn.
    void EndRequest(const Request* request, Code code);

   private:
    CallQueue* const queue_;
    std::unique_lock<std::mutex> lock_;
    bool is_long_ = false;
  };

  // Queues a collective: gives it a number and, unless by priority, a sequence number.
  void Add(Request* request);
  // Queues a message. It must be posted next, and then announced by Announce.
  void AddMessage(Request* message);
  void Announce();
  // Ends a call that had no turn, and counts it.
  void EndMessage(Request* message, Code code);
  void CountEnd(const Request& request, Code code);

  // Makes all later turns end soon. Returns whether something is queued or driven.
  bool Stop();
  bool is_stopping() const;
  bool HasCalls() const;
  bool HasMessages() const;
  // Takes no lock: turns of other threads do not matter.
  bool IsDrivenByThisThread() const {
    return driving_thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  // Call that is being driven or, if none, the first in the queue; sequence 0 when there is none.
  Call Current() const;

  // Whether something has happened that a thread driving messages must look at; clears the flag. Takes no lock.
  bool Notice() {
    return has_news_.load(std::memory_order_relaxed) && has_news_.exchange(false, std::memory_order_acquire);
  }
  void AddNews() { has_news_.store(true, std::memory_order_release); }

  // Functions for the thread that has a long turn:
  // Sets what is driven from now on.
  void SetDriven(const Call& call);
  uint64_t NextSequence();
  // The same, stored as the number of a queued request.
  void GiveSequence(Request* request);
  // First request in the order of the calls, first one of the highest priority, or the one with that number. Null if
  // none.
  Request* First() const;
  Request* FirstByPriority() const;
  Request* Find(uint64_t number) const;
  // Removes all messages from the queue and returns them.
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
    if (arguments.kind == CollectiveKind::kNone) return;  // The request of a group itself.
    const bool ok = code == Code::kOk;
    const size_t data_bytes = ok ? SendBytes(arguments, config_.rank, config_.nranks) : 0;
    config_.monitor->CountEnd(IsMessage(arguments.kind), ok, data_bytes);
  }
  void CountRequest(const Request& request, Code code);
  bool HasWork() const { return is_stopping_ || !calls_.empty() || !messages_.empty(); }

  const CallQueueConfig config_;
  mutable std::mutex mu_;
  std::condition_variable changed_;                // Signalled when there is work or the turn is free.
  std::atomic<bool> has_news_{false};              // For Notice.
  bool is_driving_ = false;                        // Some thread has a long turn.
  std::atomic<std::thread::id> driving_thread_{};  // Valid while is_driving_.
  Call driven_;                                    // Valid while is_driving_; sequence 0 for messages.
  bool is_stopping_ = false;
  uint64_t sequence_ = 0;       // The latest sequence number.
  uint64_t number_ = 0;         // Collectives queued so far.
  std::deque<Request*> calls_;  // In the order of the calls.
  std::unordered_set<Request*> messages_;
};

}  // namespace annulus
