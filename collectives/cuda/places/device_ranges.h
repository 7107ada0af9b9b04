// DeviceRanges: where memory of GPUs has been, which tells a pointer to freed memory from one to host memory: the
// driver knows neither.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace annulus {

class DeviceRanges {
 public:
  // A GPU has memory there.
  void Add(uintptr_t begin, size_t bytes);

  // Whether `pointer` lies between some of the memory, or in it. Takes no lock.
  bool Span(const void* pointer) const {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    return address >= lowest_.load(std::memory_order_relaxed) && address < end_.load(std::memory_order_relaxed);
  }

  // Whether a GPU has, or had, memory at `pointer`, as far as is known. Takes no lock for what lies apart from all
  // ranges, and holds it only to look.
  bool Has(const void* pointer) const;

  // Whether a GPU's memory was at `pointer`, which the driver does not know any more, and nothing has come there that
  // the CPU can read. Takes no lock for what lies apart from all ranges.
  bool IsFreed(const void* pointer) const;

 private:
  // Enough for programs that keep their memory. One that allocates ever more of it, elsewhere each time, has the
  // ranges forgotten, and its freed pointers count as host memory.
  static constexpr size_t kMostRanges = 4096;

  std::atomic<uintptr_t> lowest_{UINTPTR_MAX};  // All ranges lie from here
  std::atomic<uintptr_t> end_{0};               // to here.
  mutable std::mutex mutex_;
  std::map<uintptr_t, uintptr_t> ranges_;  // Ends by begins; disjoint.
};

}  // namespace annulus
