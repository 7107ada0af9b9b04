// CudaGraphCalls: the calls of one communicator in CUDA graphs. Each has a place for as long as its graph lives; a
// later capture uses it again.
//
// Threads: any, but Record and TakeAll one at a time.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "collectives/cuda/graphs/cuda_graph_call.h"

namespace annulus {

class CudaGraphCalls {
 public:
  CudaGraphCalls() = default;
  CudaGraphCalls(const CudaGraphCalls&) = delete;
  CudaGraphCalls& operator=(const CudaGraphCalls&) = delete;

  // A place with so many bytes of staging memory, while all have up to `most_bytes` of pinned memory. Errors: kAborted
  // once OpenAll was called; kOutOfMemory; as CudaGraphCall::Check and Open.
  Status Acquire(const CudaDevice& device, size_t bytes, size_t most_bytes, const std::shared_ptr<GraphBell>& bell,
                 CudaGraphCall** call);
  // As CudaGraphCall::Record. When it fails, Recycle gives the place back.
  Status Record(cuda::Stream user, cuda::Graph graph, CudaGraphCall* call);
  // Its graph is gone, or it is in none. Once for each Acquire: then it may be another's.
  void Recycle(const GraphCall* call);
  // Opens the gates of all launches to come, those of later captures too: each when its calls have ended
  // (GraphCall::End).
  void OpenAll();
  // Now, whatever is under way.
  void OpenAllNow();
  // Pinned memory, in bytes.
  size_t MemoryBytes() const;

  // All places, the gates of which are open for good.
  std::vector<std::unique_ptr<CudaGraphCall>> TakeAll();

 private:
  struct Place {
    std::unique_ptr<CudaGraphCall> call;
    bool is_used = true;  // Until Recycle.
  };

  // With mu_ held. Null: no place that is there suffices.
  Place* FindFree(const CudaDevice& device, size_t bytes);
  size_t Bytes() const;

  mutable std::mutex mu_;  // Not held while the driver is called.
  bool is_open_ = false;   // All gates are.
  size_t pinning_ = 0;     // Bytes that threads are about to pin.
  std::vector<Place> places_;
};

}  // namespace annulus
