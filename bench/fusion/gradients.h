// Gradients: the float32 gradients of a model on one rank, and four ways to sum them over all ranks, in place.
//
// Threads: one thread at a time. Sum is collective: all ranks call it in the same order.
#pragma once

#include <annulus.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "bench/fusion/model.h"
#include "bench/perf/perf_group.h"
#include "bench/perf/perf_inputs.h"

namespace annulus::fusion {

enum class Way {
  kBlocking,  // One blocking allreduce after the other, a tensor each.
  kAsync,     // One asynchronous allreduce per tensor; all are waited for at the end.
  kGroup,     // The same calls in a group.
  kFlat       // One allreduce of as many elements in one buffer: the bound, for gradients that lie so already.
};
inline constexpr std::array kAllWays = {Way::kBlocking, Way::kAsync, Way::kGroup, Way::kFlat};

class Gradients {
 public:
  static Status Create(const std::vector<Tensor>& tensors, const perf::Group& group,
                       std::unique_ptr<Gradients>* result);

  // Writes this rank's gradients where `way` wants them. A sum overwrites them, so this comes before each.
  void Fill(Way way);
  // Sums: one training step's communication, last tensor first, as a backward pass yields them.
  Status Sum(Way way, perf::Group& group);
  // Elements that are not the exact sum, and gaps behind tensors that something wrote to.
  int64_t CountWrong(Way way) const;

 private:
  struct Free {
    void operator()(uint8_t* memory) const;
  };
  // A stretch of memory, and which elements of the whole model it holds.
  struct Placement {
    size_t offset_bytes;
    size_t first;
    size_t count;
  };

  Gradients(perf::Sequence input, perf::Sequence sum) : input_(std::move(input)), sum_(std::move(sum)) {}
  Status Place(const std::vector<Tensor>& tensors);
  const std::vector<Placement>& PlacesOf(Way way) const { return way == Way::kFlat ? flat_ : tensors_; }
  Status SumBlocking(const std::vector<Placement>& places, perf::Group& group);
  Status SumAsync(perf::Group& group);
  Status SumGroup(perf::Group& group);
  // Waits for all that was started, whatever became of it, and frees it; `status` is what starting came to.
  Status Finish(annulus_status_t status, perf::Group& group);

  perf::Sequence input_;
  perf::Sequence sum_;
  std::unique_ptr<uint8_t, Free> memory_;
  std::vector<Placement> tensors_;
  std::vector<Placement> flat_;
  std::vector<annulus_request_t*> requests_;
  std::vector<annulus_call_t> calls_;
};

}  // namespace annulus::fusion
