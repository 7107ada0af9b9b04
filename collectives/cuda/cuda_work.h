// CudaWork: the work of one communicator on one GPU.
//
// A plain copy goes to a copy engine. Everything else is a slice of a kernel, which reads and writes slots where they
// are; slices that are submitted before the next Poll share a launch. What neither can do is staged (StagedWork). No
// kernel waits for anything. There is no descriptor to wake by: only polling tells.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "collectives/cuda/cuda_streams.h"
#include "collectives/cuda/places/operand_places.h"
#include "collectives/cuda/staged_work.h"
#include "collectives/reduce/domain_queue.h"
#include "cuda_kernels/reduce_types.h"

namespace annulus {

class CudaWork {
 public:
  using Ticket = DomainQueue::Ticket;
  static constexpr int kLength = StagedWork::kMost;  // Operations at a time.

  // What the GPU cannot reach the CPU reduces, whatever `on` says; the domain refuses GPUs that have no kernels.
  CudaWork(std::unique_ptr<CudaStreams> streams, ReduceOn on)
      : streams_(std::move(streams)), has_kernels_(on != ReduceOn::kCpu) {}
  ~CudaWork() { Drain(); }
  CudaWork(const CudaWork&) = delete;
  CudaWork& operator=(const CudaWork&) = delete;

  // As those of DomainQueue. `places` are those of op's operands, unless it says that this GPU reaches them; of those
  // on a GPU one at least is on this one.
  Status Submit(const SliceOp& op, const OperandPlaces& places, Ticket* ticket);
  Status Poll(Ticket ticket, bool* done);
  void Drain();
  // Whether Submit would block.
  bool is_full() const;

 private:
  static constexpr int kStagingWord = kLength;
  static_assert(kStagingWord < CudaStreams::kWords);
  static_assert(kLength <= cuda::kMaxSlices);

  // An operation under way. Its ticket is `sequence` and its index in one number.
  struct Entry {
    Ticket ticket = DomainQueue::kCompleted;
    uint32_t value = 0;  // What its word becomes.
    bool is_staged = false;
    bool is_finished = false;  // If it is staged.
  };

  Status Start(const SliceOp& given, const OperandPlaces& places, int index);
  Status StartCopy(const SliceOp& op, const OperandPlaces& places, int index);
  Status StartSlice(const SliceOp& op, bool touches_host, cuda::Function kernel, int index);
  // Launches the slices that wait.
  Status Flush();
  Status AdvanceStaged();

  const std::unique_ptr<CudaStreams> streams_;
  const bool has_kernels_;
  StagedWork staged_;

  std::array<Entry, kLength> entries_;
  uint64_t sequence_ = 0;
  int64_t idle_polls_ = 0;
  Status error_;  // Sticks.

  // The next launch.
  cuda::KernelBatch batch_;
  unsigned slices_ = 0;
  cuda::Function kernel_ = nullptr;
  size_t most_bytes_ = 0;      // Size of its largest slice.
  bool touches_host_ = false;  // Whether some operand crosses PCIe.
};

}  // namespace annulus
