// StreamCall: a call, or a group of calls, that a user's stream orders. What the stream held before comes first, and
// what it gets later waits at a gate until the ranks have done their part.
//
// The caller's thread enqueues all work of the device: the inputs are copied to staging memory, then the device writes
// that they are ready, waits at the gate, and copies the outputs. Whoever drives the communicator looks at words in
// memory and stores them, and calls nothing of the device's driver. So it can wait for nothing that waits for it.
//
// Threads: each class says.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace annulus {

// Words of one call in memory that the device and the CPU access. Each has a cache line of its own.
struct StreamWords {
  alignas(64) uint32_t ready = 0;  // Written by the device: the inputs are there, all that came before is done.
  alignas(64) uint32_t gate = 0;   // Written by the CPU; the device waits for it.
  alignas(64) uint32_t over = 0;   // Written by the device: it touches the staging memory no more.
};

// Threads: any.
class StreamCall {
 public:
  explicit StreamCall(StreamWords* words) : words_(words) {}
  StreamCall(const StreamCall&) = delete;
  StreamCall& operator=(const StreamCall&) = delete;

  // Whether the stream has come to the call: the inputs can be read, and outputs in host memory be written.
  bool IsReady() const { return Load(&words_->ready) == value(); }
  // Whether the device has left the call.
  bool IsOver() const { return Load(&words_->over) == value(); }

  // One of the calls has ended; the last one opens the gate. Before that the device cannot leave the call, so nobody
  // uses the object for another.
  void EndOne() {
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) OpenGate();
  }
  // Lets the stream go on, whatever has become of the calls.
  void OpenGate() { OpenTo(value()); }

 protected:
  ~StreamCall() = default;

  // Whether some of its calls have not ended.
  bool HasCalls() const { return left_.load(std::memory_order_acquire) > 0; }
  void SetCalls(int calls) { left_.store(calls, std::memory_order_release); }
  // The number of this use of the words. IsReady and IsOver are false from here until the device has written it.
  uint32_t NextValue() { return value_.fetch_add(1, std::memory_order_seq_cst) + 1; }
  uint32_t value() const { return value_.load(std::memory_order_seq_cst); }

 private:
  static uint32_t Load(const uint32_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
  // A gate never closes again: a late thread may still open it for an earlier use.
  void OpenTo(uint32_t value) {
    uint32_t now = __atomic_load_n(&words_->gate, __ATOMIC_SEQ_CST);
    while (static_cast<int32_t>(value - now) > 0 &&
           !__atomic_compare_exchange_n(&words_->gate, &now, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
  }

  StreamWords* const words_;
  std::atomic<uint32_t> value_{0};
  std::atomic<int> left_{0};
};

// A part of a buffer, and its place in the staging memory.
struct StreamCopy {
  std::byte* buffer = nullptr;
  std::byte* staged = nullptr;
  size_t bytes = 0;
};

// The stream-ordered calls of one communicator on one kind of device: a bounded number under way, whose memory is used
// again.
//
// Threads: OpenAll and MemoryBytes from any; the rest one at a time.
class StreamCalls {
 public:
  virtual ~StreamCalls() = default;

  // A place for `calls` calls that end together, with staging memory.
  struct Place {
    StreamCall* call = nullptr;
    std::byte* staging = nullptr;
    // Empty, with the memory that earlier calls needed.
    std::vector<StreamCopy>* inputs = nullptr;
    std::vector<StreamCopy>* outputs = nullptr;
  };

  // Of staging memory, which buffers in it keep.
  static constexpr size_t kAlignment = 256;

  // Takes a place on the stream's device, with `bytes` of staging memory. Waits up to `until`
  // while as many calls as may be are under way. Nothing else has happened when it fails.
  // Errors: kUnsupported: the stream is captured, or is in a context that is not the primary one; kTimeout; kAborted
  // once OpenAll was called; kOutOfMemory; those of the device.
  virtual Status Take(void* stream, int calls, size_t bytes, Deadline until, Place* place) = 0;

  // Puts the call, with its copies, into `stream`. Errors: those of the device; then the place was given back, and what
  // the device had got is done, without waiting for the ranks, before what `stream` gets later, as far as the device
  // works: the outputs are undefined.
  virtual Status Enqueue(void* stream, const Place& place) = 0;
  // Gives a place back that is not enqueued.
  virtual void GiveBack(const Place& place) = 0;

  // Opens all gates, those of later calls too.
  virtual void OpenAll() = 0;

  // Pinned memory, in bytes.
  virtual size_t MemoryBytes() const = 0;
};

}  // namespace annulus
