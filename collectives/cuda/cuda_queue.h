// CudaQueue: the work of one communicator on all GPUs: each operation goes to the GPU that has its operands. What has
// operands on several goes to one of them, and is staged.
//
// There is no descriptor to wake by: only polling tells.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "collectives/cuda/cuda_sharing.h"
#include "collectives/cuda/cuda_work.h"
#include "collectives/cuda/operand_places.h"
#include "collectives/reduce/domain_queue.h"
#include "cuda_kernels/reduce_types.h"

namespace annulus {

class CudaDomain;

class CudaQueue final : public DomainQueue {
 public:
  // The domain outlives the queue.
  CudaQueue(CudaDomain* domain, ReduceOn on);
  ~CudaQueue() override;

  SharedMemory* shared() override { return &sharing_; }
  void Drain() override;

 private:
  // A ticket is that of the GPU's work and its index in one number.
  static constexpr Ticket kMostGpus = 1024;

  Status SubmitAsync(const SliceOp& op, Ticket* ticket) override;
  Status PollAsync(Ticket ticket, bool* done) override;

  // Finds the work on the GPU with one of the operands, by its index, and the places of all unless the operation says
  // that this GPU reaches them.
  Status FindWork(const SliceOp& op, size_t* index);

  CudaDomain* const domain_;
  const ReduceOn on_;
  OperandPlaces places_;
  CudaSharing sharing_;
  std::vector<std::pair<int, std::unique_ptr<CudaWork>>> works_;  // By number of the GPU, as they were first used.
  Status error_;                                                  // Sticks.
};

}  // namespace annulus
