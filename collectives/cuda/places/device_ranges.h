// DeviceRanges: where memory of GPUs has been, which tells a pointer to freed memory from one to host memory: the
// driver knows neither.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

namespace annulus {

class DeviceRanges {
 public:
  // Whether a GPU has memory there now, as far as its driver tells.
  using IsMemory = std::function<bool(const void* pointer)>;

  // A GPU has this memory, which is one allocation. Where there are very many, `is_memory` is asked of each, with no
  // lock.
  void Add(uintptr_t begin, size_t bytes, const IsMemory& is_memory);

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
  // So many are kept, whether their memory was freed or not. A program that allocates ever more of it, elsewhere each
  // time, has those forgotten that were freed, whose pointers then count as host memory. What is there is never
  // forgotten: links would take it for freed.
  static constexpr size_t kFreelyKept = 4096;

  // An allocation, or what is left of one at whose addresses others came.
  struct Range {
    uintptr_t end;
    uint64_t added;  // When it was last added, counted in additions.
  };
  using Ranges = std::map<uintptr_t, Range>;  // By begins; disjoint.

  // Takes [begin, end) out of all ranges.
  void CutOut(uintptr_t begin, uintptr_t end);
  void ForgetFreed(const IsMemory& is_memory);

  std::atomic<uintptr_t> lowest_{UINTPTR_MAX};  // All ranges lie from here
  std::atomic<uintptr_t> end_{0};               // to here.
  mutable std::mutex mutex_;
  Ranges ranges_;
  uint64_t added_ = 0;
  size_t forget_at_ = kFreelyKept;  // Number of ranges of which the freed ones are to be forgotten.
};

}  // namespace annulus
