// SimDevice: a memory domain without hardware, which finds every missing wait and every touch by the CPU.
//
// Its memory is mapped twice: what callers get cannot be touched (a read or write by the CPU is a segmentation fault),
// and the device itself works through a hidden alias. Work is done at some later time, in random order among all that
// is submitted and not done: a caller that does not wait reads poison or stale data. Two pending operations that need
// an order stop the program at once. The same seed and the same calls give the same run, except with a thread.
//
// It accesses host memory as it is, and counts operands there that nobody registered as slots.
//
// Threads: any; each queue, and its part of the work, belongs to one thread at a time. With a clock, one thread in all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "collectives/reduce/memory_domain.h"
#include "tests/device/test_device.h"
#include "transport/sim/sim_clock.h"

namespace annulus {

struct SimDeviceOptions {
  uint64_t seed = 1;
  int queue_length = 16;  // Length of each queue; beyond it Submit returns kWouldBlock.
  // If set, operations are done as events of this clock, min_time to max_time after they were submitted. It outlives
  // the device. Otherwise polls drive the device, unless it has a thread: each finishes one operation or none.
  SimClock* clock = nullptr;
  Nanoseconds min_time = kMicrosecond;
  Nanoseconds max_time = 100 * kMicrosecond;
  // Whether a thread of the device does the work, one operation after the other, each in min_time to max_time of real
  // time. Then queues have a descriptor to wake by.
  bool has_thread = false;
};

class SimDevice final : public MemoryDomain, public TestDevice {
 public:
  explicit SimDevice(const SimDeviceOptions& options);
  // Frees its memory. Operations that are not done never will be.
  ~SimDevice() override;

  bool Owns(const void* pointer) const override;
  Status OpenQueue(ReduceOn on, std::unique_ptr<DomainQueue>* queue) override;
  std::byte* AllocateSlots(size_t bytes) override;
  void FreeSlots(std::byte* slots, size_t bytes) override;
  Status RegisterSlots(std::byte* slots, size_t bytes) override;
  void UnregisterSlots(std::byte* slots, size_t bytes) override;

  // Device memory, aligned to a page and filled with zeros, until Free or the device's end.
  std::byte* Allocate(size_t bytes) override;
  void Free(std::byte* device) override;
  void Write(std::byte* device, const void* host, size_t bytes) override;
  void Read(void* host, const std::byte* device, size_t bytes) const override;
  MemoryDomain* domain() override { return this; }

  // Number of operations that are not done, in all queues.
  int pending() const;
  // Number of times that an operation was done before an older one.
  int64_t overtakings() const;
  // Number of operands so far in host memory that is not registered: users' memory, or slots that were forgotten.
  int64_t unregistered() const;
  // Number of polls so far.
  int64_t polls() const;
  // Number of ranges registered as slots at this moment.
  size_t registrations() const;

 private:
  class Scheduler;
  class Queue;

  std::shared_ptr<Scheduler> scheduler_;  // Events of the clock hold weak references, queues strong ones.
  const bool has_thread_;
};

}  // namespace annulus
