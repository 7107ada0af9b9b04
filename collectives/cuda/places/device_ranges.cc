#include "collectives/cuda/places/device_ranges.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <vector>

namespace annulus {
namespace {

// Asks the kernel, which reads a set of signals there before it finds that it knows no such operation.
bool CanCpuRead(uintptr_t address) {
  constexpr long kNoOperation = -1;
  constexpr uintptr_t kSetBytes = 8;  // Size of the kernel's set, which lies in one page when it is aligned.
  const int before = errno;
  syscall(SYS_rt_sigprocmask, kNoOperation, address / kSetBytes * kSetBytes, nullptr, kSetBytes);
  const bool can = errno != EFAULT;
  errno = before;
  return can;
}

}  // namespace

void DeviceRanges::Add(uintptr_t begin, size_t bytes, const IsMemory& is_memory) {
  const uintptr_t end = begin + bytes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = ranges_.find(begin);
    if (known != ranges_.end() && known->second.end == end) {
      known->second.added = ++added_;
      return;
    }
    lowest_.store(std::min(lowest_.load(std::memory_order_relaxed), begin), std::memory_order_relaxed);
    end_.store(std::max(end_.load(std::memory_order_relaxed), end), std::memory_order_relaxed);
    CutOut(begin, end);
    ranges_[begin] = {end, ++added_};
    if (ranges_.size() <= forget_at_) return;
    forget_at_ = 2 * ranges_.size();  // For other threads, until it is known how many are left.
  }
  ForgetFreed(is_memory);
}

void DeviceRanges::CutOut(uintptr_t begin, uintptr_t end) {
  auto next = ranges_.lower_bound(begin);
  if (next != ranges_.begin() && std::prev(next)->second.end > begin) {
    Range& before = std::prev(next)->second;
    if (before.end > end) ranges_[end] = before;
    before.end = begin;
  }
  while (next != ranges_.end() && next->first < end) {
    if (next->second.end > end) ranges_[end] = next->second;
    next = ranges_.erase(next);
  }
}

// So many are new before the next time that each costs few questions.
void DeviceRanges::ForgetFreed(const IsMemory& is_memory) {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t asked_at = added_;
  std::vector<uintptr_t> begins;
  begins.reserve(ranges_.size());
  for (const auto& [begin, range] : ranges_) begins.push_back(begin);
  lock.unlock();
  std::erase_if(begins, [&](uintptr_t begin) { return is_memory(reinterpret_cast<const void*>(begin)); });
  lock.lock();
  for (const uintptr_t begin : begins) {
    const auto range = ranges_.find(begin);
    if (range != ranges_.end() && range->second.added <= asked_at) ranges_.erase(range);
  }
  forget_at_ = std::max(kFreelyKept, 2 * ranges_.size());
}

bool DeviceRanges::Has(const void* pointer) const {
  if (!Span(pointer)) return false;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto after = ranges_.upper_bound(address);
  return after != ranges_.begin() && address < std::prev(after)->second.end;
}

bool DeviceRanges::IsFreed(const void* pointer) const {
  return Has(pointer) && !CanCpuRead(reinterpret_cast<uintptr_t>(pointer));
}

}  // namespace annulus
