#include "collectives/cuda/places/device_ranges.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

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

void DeviceRanges::Add(uintptr_t begin, size_t bytes) {
  uintptr_t end = begin + bytes;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto next = ranges_.upper_bound(begin);
  if (next != ranges_.begin() && std::prev(next)->second >= end) return;
  if (ranges_.size() >= kMostRanges) ranges_.clear(), next = ranges_.end();
  lowest_.store(std::min(lowest_.load(std::memory_order_relaxed), begin), std::memory_order_relaxed);
  end_.store(std::max(end_.load(std::memory_order_relaxed), end), std::memory_order_relaxed);
  // It takes in those that it overlaps.
  if (next != ranges_.begin() && std::prev(next)->second >= begin) {
    --next;
    begin = next->first;
  }
  while (next != ranges_.end() && next->first <= end) {
    end = std::max(end, next->second);
    next = ranges_.erase(next);
  }
  ranges_[begin] = end;
}

bool DeviceRanges::Has(const void* pointer) const {
  if (!Span(pointer)) return false;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto after = ranges_.upper_bound(address);
  return after != ranges_.begin() && address < std::prev(after)->second;
}

bool DeviceRanges::IsFreed(const void* pointer) const {
  return Has(pointer) && !CanCpuRead(reinterpret_cast<uintptr_t>(pointer));
}

}  // namespace annulus
