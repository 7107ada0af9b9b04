// CudaStreamCall: the place of one stream-ordered call on a GPU: a stream of our own, two events, and pinned memory for
// its words and for staging. A call is a copy each way around one gate, or a program on shared memory.
//
// Each has its own stream, so that calls in different streams of the user do not wait for each other.
//
// Threads: those of StreamCall from any; the rest one at a time.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "collectives/cuda/cuda_device.h"
#include "collectives/cuda/pinned/pinned_memory.h"
#include "collectives/reduce/stream_call.h"

namespace annulus {

// What programs of a communicator have in common.
struct FoldTurn {
  cuda::Event turn = nullptr;    // One program at a time works: each waits for the event, and records it at its end.
  uint32_t* counters = nullptr;  // In the GPU's memory: of blocks, for each fold of a launch.
};

class CudaStreamCall final : public StreamCall {
 public:
  static constexpr size_t kFirstBytes = 64 * 1024;  // Staging memory that each has from the start.

  // `device` outlives the object. Errors: kUnsupported: the GPU cannot write a word in the order of a stream; kSystem
  // or kOutOfMemory of the driver.
  static Status Open(const CudaDevice& device, std::unique_ptr<CudaStreamCall>* call);
  // Waits for our stream, which has no gate left to come to.
  ~CudaStreamCall();

  const CudaDevice& device() const { return device_; }
  // Nobody uses it.
  bool IsFree() const { return !HasCalls() && IsOver(); }
  // For so many calls, in a stream of `user`. `shared`: what their program works on; null: they have none.
  void Begin(int calls, const CudaDevice* user, std::shared_ptr<const FoldTurn> shared);
  void GiveBack() { SetCalls(0); }

  size_t staging_bytes() const { return grown_.data() != nullptr ? grown_.bytes() : kFirstBytes; }
  std::byte* staging() const;
  size_t memory_bytes() const;
  // Bytes that Grow allocates for `bytes`.
  static size_t GrownBytes(size_t bytes);
  // Replaces what was grown before. It must be free. Errors: kOutOfMemory of the driver.
  Status Grow(size_t bytes);

  std::vector<StreamCopy>* inputs() { return &inputs_; }
  std::vector<StreamCopy>* outputs() { return &outputs_; }
  StreamProgram* program() { return &program_; }

  // Has our stream wait for what `user` holds, and enqueues the call, for whose end `user` waits from then on; of a
  // call with much work, only what comes up to its first gate. When it fails, the gate is open, and as far as the
  // driver lets it, `user` waits for what our stream had got, after which the place is free.
  Status Enqueue(cuda::Stream user);
  // Enqueues what Enqueue has left. The driver takes some 1,000 pieces of work behind a closed gate, and has the caller
  // wait with more: so whoever opens the gate must know of the call by now. When it fails, all is as after a failure of
  // Enqueue, but that the place is free when its calls have ended too.
  Status Finish(cuda::Stream user);

 private:
  static constexpr size_t kMostAtOnce = 32;

  // What was enqueued of a call.
  struct Progress {
    size_t steps = 0;       // Steps of the program,
    size_t folded = 0;      // and their folds.
    bool has_turn = false;  // Our stream waits for the program before this one.
    bool is_whole = false;  // All of it.
  };

  CudaStreamCall(const CudaDevice& device, std::unique_ptr<PinnedMemory> memory);
  Status Create();
  // Whether what is behind its first gate may have to wait to be enqueued, so that whoever opens the gate must know of
  // the call by then: it is much, or has kernels, for which the driver may wait (CUDA_LAUNCH_BLOCKING, profilers).
  bool IsDeep() const {
    return !program_.folds.empty() || (program_.empty() ? outputs_.size() : program_.steps.size()) > kMostAtOnce;
  }
  Status EnqueueInputs();
  // All behind the first gate.
  Status EnqueueRest(cuda::Stream user);
  Status EnqueueOutputs();
  // Enqueues the next steps of the program up to a gate, or to its end.
  Status EnqueueSteps(bool up_to_gate);
  // What failed is undone: nothing in our stream waits for the ranks.
  Status Undo(cuda::Stream user, Status status);
  // Launches so many folds of the program, from number `first` on.
  Status Launch(size_t first, unsigned folds) const;
  // Our stream waits for `user`. An event is of its stream's GPU.
  Status Follow(cuda::Stream user);
  // The end of a call: our stream frees the place, and `user` waits for that.
  Status Leave(cuda::Stream user);
  Status Write(uint32_t* word, uint32_t value) const;
  Status Await(uint32_t value) const;
  StreamWords* words() const { return reinterpret_cast<StreamWords*>(memory_->data()); }
  Status Copy(std::byte* to, const std::byte* from, size_t bytes, bool to_device) const;
  Status ToStatus(cuda::Result result, const char* function) const;

  const CudaDevice& device_;
  const std::unique_ptr<PinnedMemory> memory_;  // The words, then staging memory.
  PinnedMemory grown_;
  cuda::Stream stream_ = nullptr;
  cuda::Event begun_ = nullptr;  // The user's stream has come to the call.
  cuda::Event ended_ = nullptr;  // Our stream has done all of it.
  std::vector<StreamCopy> inputs_;
  std::vector<StreamCopy> outputs_;
  StreamProgram program_;
  Progress progress_;
  const CudaDevice* user_ = nullptr;        // Device of the user's stream.
  std::shared_ptr<const FoldTurn> shared_;  // Stays until our stream needs it no more.
};

}  // namespace annulus
