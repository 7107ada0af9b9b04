// SimDevice: a device without hardware, that finds every missing wait and every touch by the CPU.
//
// Its memory is mapped twice: what callers get cannot be touched (a read or write by the CPU is a segmentation fault),
// and the device's own queue works through a hidden alias. Work is done at some later time, in random order among all
// that is submitted and not done: whoever does not wait for Done reads poison or stale data. Two operations in the
// queue that need an order stop the program at once. The same seed and the same calls give the same run.
//
// Host memory, slots included, passes as it is.
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "collectives/reduce/device.h"
#include "transport/sim/sim_clock.h"

namespace annulus {

struct SimDeviceOptions {
  uint64_t seed = 1;
  int queue_length = 16;  // Submit would block beyond it.
  // When set, operations are done as events of this clock, min_time to max_time after they were submitted. It outlives
  // the device. Otherwise polls drive the device: each of them finishes one operation or none.
  SimClock* clock = nullptr;
  Nanoseconds min_time = kMicrosecond;
  Nanoseconds max_time = 100 * kMicrosecond;
};

class SimDevice final : public Device {
 public:
  explicit SimDevice(const SimDeviceOptions& options);
  // Frees its memory. Operations that are not done never will be.
  ~SimDevice();

  // Device memory, aligned to a page and filled with zeros, until the device is destroyed.
  std::byte* Allocate(size_t bytes);

  // For tests: fill and inspect device memory. Not while an operation on it is pending.
  void Write(std::byte* device, const void* host, size_t bytes);
  void Read(void* host, const std::byte* device, size_t bytes) const;

  int pending() const;
  // How often an operation was done before an older one.
  int64_t overtakings() const;

 private:
  class Scheduler;
  explicit SimDevice(std::shared_ptr<Scheduler> scheduler);

  std::shared_ptr<Scheduler> scheduler_;  // Events of the clock hold weak references.
};

}  // namespace annulus
