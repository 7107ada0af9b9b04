// StreamCall: a call, or a group of calls, that a user's stream orders. What the stream held before comes first, and
// what it gets later waits at a gate until the ranks have done their part.
//
// The caller's thread enqueues all work of the device: the inputs are copied to staging memory, then the device writes
// that they are ready, waits at the gate, and copies the outputs. Whoever drives the communicator looks at words in
// memory and stores them, and calls nothing of the device's driver. So it can wait for nothing that waits for it.
//
// Where the ranks work in device memory that they share, a call has several steps, each with a gate: stream_program.h.
// Calls that are captured into a graph of the device's: graph_call.h.
//
// Threads: each class says.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/reduce/shared_memory.h"
#include "collectives/reduce/stream_program.h"

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
  explicit StreamCall(StreamWords* words, bool is_replayed = false) : words_(words), is_replayed_(is_replayed) {}
  StreamCall(const StreamCall&) = delete;
  StreamCall& operator=(const StreamCall&) = delete;

  // Whether it is part of a graph. Then its calls are queued when a launch has come to them, and so go before those of
  // streams that are not ready, which may wait for the launch.
  bool is_replayed() const { return is_replayed_; }
  // Whether the stream has come to the call: the inputs can be read, and outputs in host memory be written.
  bool IsReady() const { return HasSaid(1); }
  // Whether the stream has come to step `step` of the call, from 1.
  bool HasSaid(uint32_t step) const { return IsAtOrAfter(Load(&words_->ready), begin() + step); }
  // Lets the stream go on from that step, and from those before it.
  void OpenGate(uint32_t step) { OpenTo(begin() + step); }
  // Whether the device has left the call.
  bool IsOver() const { return Load(&words_->over) == value(); }

  // One of the calls has ended; the last one opens the gate. From then on the object may be in use for another call,
  // since a fold has opened its last gate before: so this thread, if it is late, opens those of this use only.
  void EndOne() {
    const uint32_t last = value();
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) OpenTo(last);
  }
  // Lets the stream go on to the end, whatever has become of the calls.
  void OpenGate() { OpenTo(value()); }

 protected:
  ~StreamCall() = default;

  // Whether some of its calls have not ended.
  bool HasCalls() const { return left_.load(std::memory_order_acquire) > 0; }
  void SetCalls(int calls) { left_.store(calls, std::memory_order_release); }
  // Begins a use of the words with so many steps. IsReady and IsOver are false from here until the device has written
  // the words. Each step has its own value, the last one value().
  void NextUse(uint32_t steps) {
    begin_.store(value(), std::memory_order_relaxed);
    value_.fetch_add(steps, std::memory_order_seq_cst);
  }
  uint32_t begin() const { return begin_.load(std::memory_order_relaxed); }
  uint32_t value() const { return value_.load(std::memory_order_seq_cst); }

 private:
  static uint32_t Load(const uint32_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
  static bool IsAtOrAfter(uint32_t now, uint32_t value) { return static_cast<int32_t>(now - value) >= 0; }
  // A gate never closes again: a late thread may still open it for an earlier use.
  void OpenTo(uint32_t value) {
    uint32_t now = __atomic_load_n(&words_->gate, __ATOMIC_SEQ_CST);
    while (!IsAtOrAfter(now, value) &&
           !__atomic_compare_exchange_n(&words_->gate, &now, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
  }

  StreamWords* const words_;
  const bool is_replayed_;
  std::atomic<uint32_t> begin_{0};  // The value before the first step of this use.
  std::atomic<uint32_t> value_{0};
  std::atomic<int> left_{0};
};

class GraphBell;
class GraphCall;

// The capture of a stream into a graph of the device's.
struct StreamCapture {
  uint64_t id = 0;        // No two captures of a process have the same; 0: the stream is not captured.
  void* graph = nullptr;  // As the device names it.
};

// The stream-ordered calls of one communicator on one kind of device: a bounded number under way, whose memory is used
// again.
//
// Threads: OpenAll, OnLost, MemoryBytes, AcquireInGraph and Recycle from any; the rest one at a time.
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
    // Empty likewise. What is in it takes the place of the copies.
    StreamProgram* program = nullptr;
    GraphCall* graph_call = nullptr;  // The same as `call` where a graph is captured; else null.
  };

  // Alignment of staging memory, and of the buffers in it; in bytes.
  static constexpr size_t kAlignment = 256;

  // Acquires a place on the stream's device, with `bytes` of staging memory; with `shares`, on the device of the shared
  // memory. Waits up to `until` while as many calls as may be are under way. Nothing else has happened when it fails.
  // Errors: kUnsupported: the stream is captured, or is in a context that is not the primary one; kTimeout; kAborted
  // once OpenAll was called; kOutOfMemory; those of the device.
  virtual Status Acquire(void* stream, int calls, size_t bytes, bool shares, Deadline until, Place* place) = 0;

  // Tells whether the stream is captured. Errors: kUnsupported: nobody may use it during a capture; those of the
  // device.
  virtual Status FindCapture(void* stream, StreamCapture* capture) {
    static_cast<void>(stream);
    *capture = StreamCapture();
    return Status();
  }
  // As Acquire, for a call in the graph that `stream` is captured into. Each launch that comes to it, and the end of
  // the graph, rings the bell. Errors: kUnsupported: the device cannot; kAborted, kOutOfMemory, those of the device.
  virtual Status AcquireInGraph(void* stream, size_t bytes, const std::shared_ptr<GraphBell>& bell, Place* place) {
    static_cast<void>(stream), static_cast<void>(bytes), static_cast<void>(bell), static_cast<void>(place);
    return {Code::kUnsupported, "the device has no graphs"};
  }
  // The graph of the call is gone, or Enqueue has failed: its place is there for later captures. To be called once for
  // each AcquireInGraph. Frees nothing, since that may wait for streams.
  virtual void Recycle(GraphCall* call) { static_cast<void>(call); }

  // Allocates `bytes` of memory on the stream's device that other processes of the host can reach, once, and describes
  // it. Errors: kUnsupported and those of the device: it has no such memory, and has no kernels to work on it.
  virtual Status Share(void* stream, size_t bytes, SharedPlace* place) {
    static_cast<void>(stream), static_cast<void>(bytes), static_cast<void>(place);
    return {Code::kUnsupported, "the device has no memory that processes share"};
  }
  // Finds that memory of all ranks, this one's too, and sets memory->at(i) to where the device of this one's reaches
  // places[i]. It stays so for as long as the object lives. Errors: as SharedMemory::Import.
  virtual Status Reach(std::span<const SharedPlace> places, std::vector<std::byte*>* memory) {
    static_cast<void>(places), static_cast<void>(memory);
    return {Code::kUnsupported, "the device has no memory that processes share"};
  }

  // Puts the call into `stream`, one with much work up to its first gate, or all of it into the graph. Errors: those of
  // the device; then the place was given back, but for one in a graph, and what the device had got is done, without
  // waiting for the ranks, before what `stream` gets later, as far as the device works: the outputs are undefined.
  virtual Status Enqueue(void* stream, const Place& place) = 0;
  // Puts what is left into `stream`, once whoever opens the gate knows of the call: may wait for that, since devices
  // take a bounded number of pieces of work behind it. Not for a graph. Errors: as Enqueue, but that the place is given
  // back when its calls have ended.
  virtual Status Finish(void* stream, const Place& place) = 0;
  // Gives a place back that is not enqueued.
  virtual void GiveBack(const Place& place) = 0;

  // Opens all gates, those of later calls too.
  virtual void OpenAll() = 0;

  // Names who is told, once, when a device is not any more what it was when calls were put into its streams, as after a
  // reset: the streams are gone, so calls that wait for them must be ended. `lost` is called from any thread, also in
  // the functions of this class. Null: nobody; no call is under way after that.
  virtual void OnLost(std::function<void(const std::string& why)> lost) { static_cast<void>(lost); }

  // Pinned memory, in bytes.
  virtual size_t MemoryBytes() const = 0;
};

}  // namespace annulus
