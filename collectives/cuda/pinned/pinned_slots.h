// PinnedSlots: the slots of the process, which a GPU may access once they are pinned.
//
// Pinning takes time and needs a GPU, so slots are pinned when the first device buffer comes: a process that has a GPU
// and reduces host memory pays nothing. What cannot be pinned stays usable: work on it is staged, and the log says so
// once.
//
// Pinning may wait for streams of the program's, so nobody does it with the lock: who only looks never waits.
//
// Threads: any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
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
  // Unpins what no other range shares, once nobody pins it. No work on the range may be pending.
  void Remove(const std::byte* slots, size_t bytes);

  // Pins all ranges, those that come later too, unless that was done for another device, which was not reset since;
  // waits for a thread that does. `device` outlives them, or ForgetDevice is called before.
  void PinFor(const CudaDevice& device);
  void ForgetDevice();

  // Whether the device for which they were pinned, if any, is not `device` and was reset. Asks the driver of another
  // device only, and takes no lock.
  bool AreLostFor(const CudaDevice& device) const {
    const CudaDevice* const pinned_for = device_.load(std::memory_order_acquire);
    return pinned_for != nullptr && pinned_for != &device && pinned_for->IsReset();
  }
  // Changes whenever the pinned ranges do.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }
  // What is pinned, in ascending order.
  std::vector<Range> Pinned() const;
  // Why the first of those that could not be pinned is not; "" when all are.
  std::string not_pinned() const;

 private:
  enum class State : uint8_t { kPlain, kChanging, kPinned };
  struct Pages {
    size_t bytes = 0;
    int users = 0;                // 0: it is about to be erased.
    State state = State::kPlain;  // kChanging: a thread pins or unpins it, without the lock, and it stays meanwhile.
    std::string why_not = {};     // Why it could not be pinned; "": it could, or nobody has tried.
  };
  using AllPages = std::map<const std::byte*, Pages>;
  class Change;

  // The last ones that begin at `memory` or before.
  AllPages::iterator Before(const std::byte* memory);
  // The pins went with the context of their device. With mutex_ held.
  void Unlearn();
  // With mutex_ held, which they give back while the driver works.
  void Pin(const std::byte* begin, Pages* pages);
  void Unpin(const std::byte* begin, Pages* pages);
  void Note(Pages* pages, std::string why_not);

  mutable std::mutex mutex_;                         // Not held while the driver is called.
  std::condition_variable changed_;                  // Some pages are kChanging no more, or pins_all_ has ended.
  std::atomic<const CudaDevice*> device_ = nullptr;  // Changed with mutex_ held.
  bool pins_all_ = false;                            // A thread is in PinFor.
  size_t not_pinned_ = 0;                            // Number of pages_ with a reason.
  bool has_told_ = false;                            // The log has had one.
  AllPages pages_;                                   // Disjoint.
  std::multiset<Range> left_out_;                    // Whole pages of ranges that Add has left out.
  std::atomic<uint64_t> version_{1};
};

}  // namespace annulus
