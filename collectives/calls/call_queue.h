// CallQueue: the order in which the calls of one communicator are driven: who has the turn, which calls wait for it,
// and the number of each call. One thread at a time has the turn; it drives everything, including messages.
//
// A request stays here from when it is queued until it has been driven to its end. A message does not wait for a turn;
// it stays until it has ended: posted at first, then taken on by whoever drives.
//
// Threads that wait for a request take turns themselves. The progress thread takes one only when the work has been left
// alone for a while, and gives it up when such a thread comes. Waking it takes longer than a small call, so it is not
// woken while it looks after the queue: it looks every 50 to 1000 microseconds by itself (look_pauses.h), until nothing
// has been queued for a while, and then once a second.
//
// Threads: any; the queue has its own lock, which also guards the communicator's requests. Some functions are only for
// the thread that has the turn. The lock orders the memory accesses of successive owners of the turn.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "collectives/calls/mutex.h"
#include "collectives/calls/request.h"
#include "collectives/observe/monitor.h"

namespace annulus {

struct CallQueueConfig {
  int rank = 0;
  int nranks = 1;
  bool by_priority = false;    // Calls go by priority, and keep no order.
  Monitor* monitor = nullptr;  // Counts the calls that end. Outlives the queue.
  // Makes the driving thread look at what is new. Called with the lock held; must not block, nor need memory.
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
    struct OnlyLock {};
    struct Helps {
      std::function<bool()> is_over;  // Asked when a request has ended, or a turn.
      Deadline until = kNoDeadline;
    };

    // Takes a short turn if nobody has the turn and nothing waits for it. Does not block.
    explicit Turn(CallQueue* queue) : queue_(queue), lock_(queue->mu_) {
      if (queue->is_driving_ || !queue->calls_.empty()) lock_.unlock();
    }
    // Takes the queue's lock, whoever has the turn. It is a short turn if one of the functions MayDrive says so.
    Turn(CallQueue* queue, OnlyLock) : queue_(queue), lock_(queue->mu_) {}
    // For the progress thread. Takes a long turn once there is something to do that others leave alone: calls,
    // messages, or the queue is stopping.
    Turn(CallQueue* queue, AwaitWork);
    // For threads that wait for a request. Takes a long turn once nobody else has the turn. Takes none if `is_over`
    // returns true first, at the deadline, or if calls are ordered by priority.
    Turn(CallQueue* queue, const Helps& helps);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      if (is_long_) End();
    }

    explicit operator bool() const { return is_long_ || lock_.owns_lock(); }

    // For a turn of OnlyLock. Whether nobody has the turn; whether, besides, no call waits for it.
    bool MayDrive() const { return !queue_->is_driving_; }
    bool MayDriveMessages() const { return !queue_->is_driving_ && queue_->calls_.empty(); }
    bool is_stopping() const { return queue_->is_stopping_; }
    // Whether, besides, `first` is the next call in the queue, which then gets its number. Also for a long turn that
    // was shortened. Not where calls go by priority.
    bool MayDriveFirst(const Request* first) {
      if ((queue_->is_driving_ && !is_long_) || queue_->calls_.front() != first) return false;
      queue_->NumberFirst();
      return true;
    }
    // The next call in the queue; null if there is none.
    Request* FirstCall() const { return queue_->calls_.front(); }
    // As CallQueue::Add and PostMessage, where the queue is not stopping. `wakes`: the progress thread, if it sleeps.
    void Add(Request* request, bool wakes = true) { queue_->AddHeld(request, wakes); }
    void PostMessage(Request* message, bool wakes = true) { queue_->PostHeld(message, wakes); }
    // Queues a message that was taken on already, or takes on one that is posted. `is_left`: this thread may leave it
    // alone.
    void KeepMessage(Request* message, bool is_left);
    // Counts a collective that has ended well and is not queued.
    void CountEnded(size_t data_bytes) { queue_->config_.monitor->CountEnd(false, true, data_bytes); }
    void CountMessage(const CallArguments& message) { queue_->CountMessage(message); }

    // Returns the number of the next collective. Call it only in a short turn.
    uint64_t NextSequence() { return ++queue_->sequence_; }

    // Lets others queue from here on, while this turn drives `call`. A call with sequence 0 stands for messages.
    void Lengthen(const Call& call) {
      queue_->BeginDrive(call);
      is_long_ = true;
      lock_.unlock();
    }

    // Takes the lock again: what follows happens together with the end of the turn.
    void Shorten() {
      if (!lock_.owns_lock()) lock_.lock();
    }
    // Counts and removes the next call in the queue, which has been driven in this turn, and which now is short. It
    // stands for no others.
    void RemoveFirst(Code code) {
      queue_->Count(queue_->calls_.front()->arguments, code);
      DropFirst();
    }
    // The same for a collective that has ended well and has so many bytes in its send buffer.
    void RemoveEnded(size_t data_bytes) {
      CountEnded(data_bytes);
      DropFirst();
    }
    // Gives the turn back.
    void End() {
      if (is_long_) {
        Shorten();
        queue_->EndDrive();
        is_long_ = false;
      }
      if (lock_.owns_lock()) lock_.unlock();
    }
    // The first message that is posted, or was taken on; null if there is none. Request::next leads on.
    Request* FirstPosted() const { return queue_->messages_.posted.front(); }
    Request* FirstMessage() const { return queue_->messages_.taken_on.front(); }
    bool IsPosted(const Request* message) const { return message->list == &queue_->messages_.posted; }
    // Whether a posted message is before one like `message`: before `end`, which is posted, or any if that is null.
    bool HasPostedBefore(const CallArguments& message, const Request* end) const {
      return queue_->messages_.posted.front() != end && queue_->IsAnyPostedBefore(message, end);
    }
    // Has the threads that wait ask again, as CallQueue::AnnounceEnd.
    void AnnounceEnd() {
      if (queue_->helpers_.load() > 0) queue_->ended_.notify_all();
    }
    // Counts and removes a queued message, which has ended in this short turn.
    void RemoveMessage(Request* message) {
      queue_->CountMessage(message->arguments);
      queue_->EraseMessage(message);
      ++queue_->watch_.activity;  // What comes next is not left alone.
    }
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

   private:
    void DropFirst() {
      queue_->calls_.pop_front();
      ++queue_->watch_.activity;  // Counts for a short turn too: what comes next is not left alone.
    }

    CallQueue* const queue_;
    std::unique_lock<Mutex> lock_;
    bool is_long_ = false;
  };

  // The queue's lock.
  Mutex* mutex() { return &mu_; }

  // Queues a collective, and numbers it. One of a graph goes before the first whose stream is not ready, which may wait
  // for the graph, and is hurried. Its sequence number follows when it is about to be driven. Returns false, and
  // does nothing, when the queue is stopping. Needs no memory, as PostMessage.
  bool Add(Request* request);
  // Posts a message, likewise.
  bool PostMessage(Request* message);
  // Whether any message is posted. Any thread.
  const std::atomic<bool>* has_posted() const { return &messages_.has_posted; }
  // Ends a message, and counts it.
  void EndMessage(Request* message, Code code);
  // Has the threads that wait ask again whether it is over. Takes no lock when there are none.
  void AnnounceEnd() {
    if (helpers_.load() > 0) WakeHelpers();
  }
  // Whether a thread waits that would take the turn. Takes no lock.
  bool IsWanted() const { return !config_.by_priority && helpers_.load(std::memory_order_relaxed) > 0; }
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
  // First request in the order of the calls, which is driven from now on; null if none.
  Request* DriveFirst(bool* is_stopping);
  // Puts what an agreement holds in its place, in that order and ahead of everything else.
  void Release(Request* agreement);
  // Removes an agreement with what it holds, which is refused: nothing is counted.
  void Drop(Request* agreement);
  // First request if an agreement has released it, which makes it the next one on all ranks; else null.
  Request* FirstReleased() const;
  // First request of the highest priority, or the one with that number. Null if none.
  Request* FirstByPriority() const;
  Request* Find(uint64_t number) const;
  // Whether it is still the first: no call of a graph has come before it. Once its stream is ready, none will.
  bool IsFirst(const Request* request) const;
  // Whether a call of a graph has come before the one that DriveFirst gave. Takes no lock.
  bool HasOvertaken() const { return has_overtaken_.load(std::memory_order_acquire); }
  // Removes and counts a request that has been driven.
  void Remove(Request* request, Code code);
  // The first posted message; null when there is none. AcceptFirst takes it on.
  Request* FirstPosted() const;
  void AcceptFirst();
  // Removes a message from the queue and returns it; null when there is none.
  Request* TakeMessage();

 private:
  // How the progress thread looks after the queue.
  struct Watch {
    std::condition_variable_any wakes;  // Wakes the progress thread.
    bool is_asleep = false;             // It does not look, but waits to be woken.
    bool is_urgent = false;             // It takes what is queued now without leaving it alone first.
    uint64_t activity = 0;              // Changes when something is queued or driven.
    uint64_t queued = 0;                // Changes when something is queued.
  };

  // With mu_ held.
  void BeginDrive(const Call& call) {
    ++watch_.activity;
    is_driving_ = true;
    driving_thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    driven_ = call;
  }
  void EndDrive();
  // Gives the first call its sequence number, unless it has one.
  void NumberFirst() {
    Request* const first = calls_.front();
    if (!config_.by_priority && first->call.sequence == 0) first->call.sequence = ++sequence_;
  }
  void Count(const CallArguments& arguments, Code code) {
    // The request of a group itself, and what ranks exchange before a call.
    if (arguments.kind == CollectiveKind::kNone || arguments.kind == CollectiveKind::kAgreement) return;
    const bool ok = code == Code::kOk;
    const size_t data_bytes = ok ? SendBytes(arguments, config_.rank, config_.nranks) : 0;
    config_.monitor->CountEnd(IsMessage(arguments.kind), ok, data_bytes);
  }
  void CountMessage(const CallArguments& message) {
    config_.monitor->CountEnd(true, true, message.sendbuf == nullptr ? 0 : message.count * TypeBytes(message.type));
  }
  void CountRequest(const Request& request, Code code);
  void AddHeld(Request* request, bool wakes = true);
  static bool IsReplayed(const Request& request) { return request.stream != nullptr && request.stream->is_replayed(); }
  // Whether a call of a graph is queued that nobody has taken on.
  bool HasReplayed() const;
  // Puts the last call, that of a graph, before the first whose stream is not ready.
  void Overtake(Request* last);
  void PostHeld(Request* message, bool wakes = true) {
    watch_.is_urgent |= IsReplayed(*message);
    messages_.posted.push_back(message);
    messages_.has_posted.store(true, std::memory_order_release);
    AddedWork(wakes);
  }
  void EraseMessage(Request* message) {
    messages_.taken_on.erase(message);
    messages_.posted.erase(message);
    messages_.has_posted.store(!messages_.posted.empty(), std::memory_order_release);
  }
  bool IsAnyPostedBefore(const CallArguments& message, const Request* end) const {
    for (const Request* each = messages_.posted.front(); each != end && each != nullptr; each = each->next) {
      const CallArguments& a = each->arguments;
      if (a.kind == message.kind && (a.root == message.root || a.root == ANNULUS_ANY_PEER)) return true;
    }
    return false;
  }
  bool HasAnyMessage() const { return !messages_.posted.empty() || !messages_.taken_on.empty(); }
  void AddedWork(bool wakes = true);
  void WakeHelpers();
  bool HasWork() const { return is_stopping_ || !calls_.empty() || HasAnyMessage(); }

  const CallQueueConfig config_;
  mutable Mutex mu_;
  std::condition_variable_any ended_;              // Signalled when a turn or a request has ended and someone waits.
  std::atomic<bool> has_news_{false};              // For Notice.
  std::atomic<bool> has_overtaken_{false};         // For HasOvertaken.
  bool is_driving_ = false;                        // Some thread has a long turn.
  std::atomic<std::thread::id> driving_thread_{};  // Valid while is_driving_.
  Call driven_;                                    // Valid while is_driving_; sequence 0 for messages.
  std::atomic<int> helpers_{0};                    // Threads that wait for a turn or for the end of a request.
  Watch watch_;
  bool is_stopping_ = false;
  uint64_t sequence_ = 0;  // The latest sequence number.
  uint64_t number_ = 0;    // Collectives queued so far.
  RequestList calls_;      // In the order of the calls.
  struct {
    RequestList posted;  // Not taken on yet.
    std::atomic<bool> has_posted{false};
    RequestList taken_on;
  } messages_;
};

}  // namespace annulus
