// CudaQueue: the work of one communicator on all GPUs: each operation goes to the GPU that has its operands. What has
// operands on several goes to one of them, and is staged.
//
// There is no descriptor to wake by: only polling tells.
//
// What it needs on a GPU is opened for the first buffer there, by the thread that makes the call: the driver may wait
// for streams meanwhile, and whoever drives the calls may have to open what these wait for.
//
// Threads: one at a time; Prepare from any.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "collectives/cuda/cuda_sharing.h"
#include "collectives/cuda/cuda_work.h"
#include "collectives/cuda/places/operand_places.h"
#include "collectives/reduce/domain_queue.h"
#include "cuda_kernels/reduce_types.h"

namespace annulus {

class CudaDevice;
class CudaDomain;

class CudaQueue final : public DomainQueue {
 public:
  // The domain outlives the queue.
  CudaQueue(CudaDomain* domain, ReduceOn on);
  ~CudaQueue() override;

  // Opens what it needs on that GPU, unless that is done; it waits for another thread that does. What fails, the first
  // operation there tells, unless a later call comes before it, which tries again.
  void Prepare(const CudaDevice& device);

  // Whether that was done for that GPU. Asks no driver.
  bool IsPreparedFor(const CudaDevice& device);

  SharedMemory* shared() override { return &sharing_; }
  Status Check() override;
  void Drain() override;

 private:
  // A ticket is that of the GPU's work and its index in one number.
  static constexpr Ticket kMostGpus = 1024;

  Status SubmitAsync(const SliceOp& op, Ticket* ticket) override;
  Status PollAsync(Ticket ticket, bool* done) override;

  // What was prepared for a GPU, until its work takes it.
  struct Prepared {
    const CudaDevice* device = nullptr;
    bool is_being_opened = false;  // By some thread.
    bool is_taken = false;         // Streams, or why there are none.
    std::unique_ptr<CudaStreams> streams;
    Status status;
  };

  // What was prepared for the GPU of that number, perhaps before it was reset; null: nothing was. With mutex_ held.
  Prepared* FindPrepared(int number);
  // Takes what was prepared for that GPU, or opens it. Errors: those of CudaStreams::Open.
  Status ClaimStreams(int number, std::unique_ptr<CudaStreams>* streams);
  // Finds the work on the GPU with one of the operands, by its index, and the places of all unless the operation says
  // that this GPU reaches them.
  Status FindWork(const SliceOp& op, size_t* index);
  // The GPU for what has no operand on one: preferably one that is ready.
  int AnyGpu();

  CudaDomain* const domain_;
  const ReduceOn on_;
  OperandPlaces places_;
  CudaSharing sharing_;
  std::vector<std::pair<int, std::unique_ptr<CudaWork>>> works_;  // By number of the GPU, as they were first used.
  Status error_;                                                  // Sticks.
  std::mutex mutex_;  // Guards what follows. Not held while the driver is called.
  std::condition_variable opened_;
  std::deque<Prepared> prepared_;
};

}  // namespace annulus
