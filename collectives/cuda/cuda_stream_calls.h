// CudaStreamCalls: the stream-ordered calls of one communicator on all GPUs, up to kMostCalls on each at a time, and
// those in graphs beside them.
//
// Threads: as StreamCalls.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/cuda/cuda_stream_call.h"
#include "collectives/cuda/graphs/cuda_graph_calls.h"
#include "collectives/cuda/reset_watch.h"
#include "collectives/reduce/stream_call.h"

namespace annulus {

class CudaDomain;
class FoldMemory;

class CudaStreamCalls final : public StreamCalls {
 public:
  // Enough that a thread which runs ahead of its GPU seldom waits; each takes a stream of the driver's.
  static constexpr int kMostCalls = 16;

  // The domain outlives the object.
  CudaStreamCalls(CudaDomain* domain, size_t most_bytes) : domain_(domain), most_bytes_(most_bytes) {}
  // Opens all gates. Places that the GPU has not left yet become the domain's.
  ~CudaStreamCalls() override;

  Status Acquire(void* stream, int calls, size_t bytes, bool shares, Deadline until, Place* place) override;
  Status FindCapture(void* stream, StreamCapture* capture) override;
  Status AcquireInGraph(void* stream, size_t bytes, const std::shared_ptr<GraphBell>& bell, Place* place) override;
  void Recycle(GraphCall* call) override { graphs_.Recycle(call); }
  Status Share(void* stream, size_t bytes, SharedPlace* place) override;
  Status Reach(std::span<const SharedPlace> places, std::vector<std::byte*>* memory) override;
  Status Enqueue(void* stream, const Place& place) override;
  Status Finish(void* stream, const Place& place) override;
  void GiveBack(const Place& place) override;
  void OpenAll() override;
  // The process ends: gates of graphs do not wait for the ends of their calls.
  void OpenAllNow() {
    OpenAll();
    graphs_.OpenAllNow();
  }
  void OnLost(std::function<void(const std::string& why)> lost) override;
  size_t MemoryBytes() const override;

 private:
  // The memory of this rank, and of those of the same process, which nobody maps.
  struct Shared {
    std::shared_ptr<FoldMemory> own;
    std::vector<std::shared_ptr<FoldMemory>> neighbours;
  };

  // GPUs that calls were for, and who is to be told when one was reset.
  struct Used {
    std::mutex mu;  // Not held while the driver is called.
    std::vector<const CudaDevice*> devices;
    std::mutex told_mu;  // Held while `lost` is called.
    std::function<void(const std::string& why)> lost;
  };

  // Whether no GPU that calls were for was reset; else that is told. Errors: kSystem: one was.
  Status CheckUsed();
  void NoteUsed(const CudaDevice& device);
  // Null: it is none of them.
  const CudaDevice* FindUsed(cuda::Device handle);
  // For the watch: returns whether calls are under way.
  bool LookAfterCalls();
  // The GPU of a stream, if calls may be put into that.
  Status FindDevice(cuda::Stream stream, const CudaDevice** device);
  // The same after FindCapture, without asking the driver again.
  Status FindDeviceAgain(cuda::Stream stream, const CudaDevice** device);
  // The stream's context, of a default stream the calling thread's, and its GPU.
  Status FindContext(cuda::Stream stream, cuda::Context* context, cuda::Device* handle) const;
  // Makes the places of a GPU, all now: later its work may be behind a gate.
  Status Prepare(const CudaDevice& device);
  // Waits for a free place on that GPU, the best one for so many bytes.
  Status AwaitFree(const CudaDevice& device, size_t bytes, Deadline until, CudaStreamCall** call);
  // With mu_ held. Null: none is free.
  CudaStreamCall* FindFree(const CudaDevice& device, size_t bytes) const;
  // While all places then have up to `most_bytes` of memory.
  Status Grow(CudaStreamCall* call, size_t bytes, size_t most_bytes);
  // Grows the other free places of that GPU, as far as there is memory: later their allocation may wait for a gate.
  void GrowFree(const CudaDevice& device, size_t bytes);

  CudaDomain* const domain_;
  const size_t most_bytes_;
  mutable std::mutex mu_;  // Not held while the driver is called, for OpenAll must not wait.
  std::condition_variable opened_;
  bool is_open_ = false;  // All gates are.
  size_t memory_bytes_ = 0;
  CudaGraphCalls graphs_;
  const CudaDevice* found_ = nullptr;  // By FindCapture, for the stream of found_for_.
  cuda::Stream found_for_ = nullptr;
  std::shared_ptr<Shared> shared_;                      // Null: there is none.
  std::vector<std::unique_ptr<CudaStreamCall>> calls_;  // Changed only by the thread that takes places.
  Used used_;
  ResetWatch watch_{[this] { return LookAfterCalls(); }};
};

}  // namespace annulus
