// GraphCall: a call, or a group of calls, in a graph of the device's: every launch of the graph does it again.
//
// The device copies the inputs to staging memory, calls a function of the host, waits at the gate, closes it again for
// the next launch, and copies the outputs. What a graph holds is the same in each launch, so no word of it can count:
// the function counts, and rings a bell. Like all such functions it must call nothing of the device's driver, and wait
// for nothing.
//
// Beside the gate lies a word that the device never writes: it opens the gate for good, for launches that come after
// the end of the communicator too.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "collectives/reduce/stream_call.h"

namespace annulus {

// What graphs of one communicator ring when something has happened to them. Threads: any.
class GraphBell {
 public:
  // How often it was rung, for what.
  struct Rings {
    uint64_t launches = 0;
    uint64_t ends = 0;  // Graphs are gone.
    uint64_t others = 0;
    bool operator==(const Rings& other) const = default;
  };

  void RingLaunch() { Ring(&rings_.launches); }
  void RingEnd() { Ring(&rings_.ends); }
  void Ring() { Ring(&rings_.others); }
  // Waits until it has been rung since it returned `seen`, up to the deadline.
  Rings Await(const Rings& seen, Deadline until = kNoDeadline) {
    std::unique_lock<std::mutex> lock(mu_);
    const auto is_rung = [&] { return !(rings_ == seen); };
    if (until == kNoDeadline) {
      rung_.wait(lock, is_rung);
    } else {
      rung_.wait_for(lock, std::chrono::nanoseconds(until - Now()), is_rung);
    }
    return rings_;
  }

 private:
  void Ring(uint64_t* count) {
    const std::lock_guard<std::mutex> lock(mu_);
    ++*count;
    rung_.notify_all();
  }

  std::mutex mu_;
  std::condition_variable rung_;
  Rings rings_;
};

// Threads: any, but for Begin and IsIdle: the one that begins replays.
class GraphCall : public StreamCall {
 public:
  // Its stream is always ready: its calls are queued when a launch has come to them.
  GraphCall(StreamWords* words, std::shared_ptr<GraphBell> bell)
      : StreamCall(words, true), words_(words), bell_(std::move(bell)) {
    NextUse(1);
    words->ready = value();
    words->over = value();
  }

  // Number of launches that have come to the call.
  uint64_t launches() const { return launches_.load(std::memory_order_acquire); }
  // Whether no launch will come any more.
  bool is_gone() const { return is_gone_.load(std::memory_order_acquire); }

  // Begins a launch's work: `calls` end before the gate opens. Returns false after End: then the gate is open for good.
  bool Begin(int calls) {
    const std::lock_guard<std::mutex> lock(mu_);
    if (is_ended_) {
      OpenForGood();
    } else {
      SetCalls(calls);
    }
    return !is_ended_;
  }
  bool IsIdle() const { return !HasCalls(); }
  // Whether the last launch has passed the gate: its opening cannot be taken for that of the next one.
  bool IsGateClosed() const { return __atomic_load_n(&words_->gate, __ATOMIC_SEQ_CST) == 0; }
  // The communicator has ended. While calls of a launch are under way the gate stays closed, for the next launch would
  // overwrite what other ranks may still be sent; it opens with their end.
  void End() {
    const std::lock_guard<std::mutex> lock(mu_);
    is_ended_ = true;
    if (IsIdle()) OpenForGood();
  }

  // Opens the gate of all launches to come, whatever is under way.
  virtual void OpenForGood() = 0;
  virtual bool IsOpenForGood() const = 0;

 protected:
  ~GraphCall() = default;

  // For the device's threads.
  void NoteLaunch() {
    launches_.fetch_add(1, std::memory_order_release);
    bell_->RingLaunch();
  }
  void NoteEnd() {
    const std::shared_ptr<GraphBell> bell = bell_;  // Whoever sees the end may use the place again.
    is_gone_.store(true, std::memory_order_release);
    bell->RingEnd();
  }
  // Has the place of a graph that is gone begin anew.
  void Renew(std::shared_ptr<GraphBell> bell) {
    bell_ = std::move(bell);
    launches_.store(0, std::memory_order_relaxed);
    is_gone_.store(false, std::memory_order_release);
  }

 private:
  const StreamWords* const words_;
  std::mutex mu_;
  bool is_ended_ = false;
  std::shared_ptr<GraphBell> bell_;
  std::atomic<uint64_t> launches_{0};
  std::atomic<bool> is_gone_{false};
};

}  // namespace annulus
