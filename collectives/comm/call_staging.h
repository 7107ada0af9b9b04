// CallStaging: small collectives on device memory, done as a whole on copies in memory that both the device and the CPU
// access: two copies and the work of the CPU are faster than a dozen small pieces of the device's work, each of which
// is waited for. Local to this rank: the others see the same slices, and the results have the same bits.
//
// One call at a time is under way, so all share one piece of memory, which comes and goes with the slots of links.
//
// Threads: bytes() from any; the rest one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "collectives/calls/call_arguments.h"
#include "collectives/calls/request.h"
#include "collectives/calls/staged_buffers.h"
#include "collectives/core/segments.h"
#include "transport/memory/slot_memory.h"

namespace annulus {

class CallStaging {
 public:
  CallStaging(int rank, int nranks) : nranks_(nranks), buffers_(rank, nranks) {}

  // Before anything else: stages what fits into `bytes`, which are taken from `memory`. Nothing is staged without, or
  // where there is no memory.
  void Open(SlotMemory* memory, size_t bytes);
  size_t bytes() const { return memory_ != nullptr ? memory_->bytes() : 0; }

  // The buffers of a call for the engine: staged if they lie on a device and are small enough. `fused`: a request that
  // combines allreduces; null: none. They are valid until the next call.
  Buffers BuffersFor(const CallArguments& call, const Request* fused);

 private:
  // Replaces the buffers of `calls_`. Returns their device's queue, null when they are not to be staged.
  DomainQueue* Stage();

  const int nranks_;
  std::unique_ptr<SlotBlock> memory_;  // Null: nothing is staged.
  // For the call under way; kept so that later ones need no memory.
  StagedBuffers buffers_;
  std::vector<CallArguments> calls_;
  std::vector<Tensor> tensors_;
  Segments segments_;
  std::vector<StreamCopy> inputs_;
  std::vector<StreamCopy> outputs_;
};

}  // namespace annulus
