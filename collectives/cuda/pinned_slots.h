// PinnedSlots: the slots of the process, which a GPU may access once they are pinned.
//
// Pinning takes time and needs a GPU, so slots are pinned when the first device buffer comes: a process that has a GPU
// and reduces host memory pays nothing. What cannot be pinned stays usable: work on it is staged, and the log says so
// once.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "collectives/cuda/cuda_device.h"

namespace annulus {

class PinnedSlots {
 public:
  using Range = std::pair<const std::byte*, size_t>;  // Begin and bytes.

  // Adds a range, whose whole pages must stay mapped until Remove. Ranges may share pages.
  void Add(const std::byte* slots, size_t bytes);
  // Unpins what no other range shares. No work on the range may be pending.
  void Remove(const std::byte* slots, size_t bytes);

  // Pins all ranges, those that come later too. `device` outlives them, or ForgetDevice is called before.
  void PinFor(const CudaDevice& device);
  void ForgetDevice();

  // Changes whenever the pinned ranges do.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }
  // What is pinned, in ascending order.
  std::vector<Range> Pinned() const;
  // Why the first of those that could not be pinned was not; "" when all are. Lives as long as the object.
  const char* not_pinned() const;

 private:
  struct Pages {
    size_t bytes = 0;
    int users = 0;
    bool is_pinned = false;
  };

  void Pin(const std::byte* begin, Pages* pages);
  void Unpin(const std::byte* begin, Pages* pages);

  mutable std::mutex mutex_;
  const CudaDevice* device_ = nullptr;
  std::string not_pinned_;                   // Set once.
  std::map<const std::byte*, Pages> pages_;  // Disjoint.
  std::atomic<uint64_t> version_{1};
};

}  // namespace annulus
