// AllreduceRun: one rank's allreduces of float32 sums on buffers of a GPU, checked and timed, whatever library makes
// them.
//
// Threads: one.
#pragma once

#include <annulus.h>

#include <cstddef>
#include <functional>
#include <string>

#include "tests/gpu/real_device.h"

namespace annulus {

// Seconds of a clock that only goes on.
double SecondsNow();

class AllreduceRun {
 public:
  // Sums `count` elements of all ranks; returns when the result can be read. False: it failed, and has said why.
  using Allreduce = std::function<bool(const std::byte* in, std::byte* out, size_t count)>;

  // `comm` has the ranks, and their barriers before each call that is timed. Both outlive the object.
  AllreduceRun(std::string name, annulus_comm_t* comm, RealDevice* device, Allreduce allreduce);

  // Allreduces of so many bytes, out of place and in place. Rank 0 prints a line. False: something is wrong.
  bool Run(size_t bytes);

 private:
  bool IsSum(const std::byte* memory, size_t count);
  // The median of some calls, on this rank.
  double Time(const std::byte* in, std::byte* out, size_t count);

  const std::string name_;
  annulus_comm_t* const comm_;
  RealDevice* const device_;
  const Allreduce allreduce_;
  int rank_ = 0;
  int size_ = 0;
};

}  // namespace annulus
