#include "collectives/cuda/pinned_slots.h"

#include <iterator>

#include "base/log.h"

namespace annulus {
namespace {

constexpr uintptr_t kPageBytes = 4096;

PinnedSlots::Range PagesOf(const std::byte* slots, size_t bytes) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(slots) / kPageBytes * kPageBytes;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(slots) + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  return {reinterpret_cast<const std::byte*>(begin), end - begin};
}

}  // namespace

void PinnedSlots::Add(const std::byte* slots, size_t bytes) {
  const auto [begin, size] = PagesOf(slots, bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto after = pages_.upper_bound(begin);
  if (after != pages_.begin()) {
    const auto before = std::prev(after);
    const std::byte* const end = before->first + before->second.bytes;
    if (begin + size <= end) {
      ++before->second.users;
      return;
    }
    // A range that shares only some pages stays as it is: the driver pins a page once.
    if (begin < end) return;
  }
  if (after != pages_.end() && after->first < begin + size) return;
  Pages* const pages = &pages_[begin];
  *pages = {size, 1, false};
  Pin(begin, pages);
}

void PinnedSlots::Remove(const std::byte* slots, size_t bytes) {
  const auto [begin, size] = PagesOf(slots, bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto after = pages_.upper_bound(begin);
  if (after == pages_.begin()) return;
  const auto found = std::prev(after);
  if (begin + size > found->first + found->second.bytes || --found->second.users > 0) return;
  Unpin(found->first, &found->second);
  pages_.erase(found);
}

void PinnedSlots::Pin(const std::byte* begin, Pages* pages) {
  if (device_ == nullptr) return;
  const cuda::Driver& driver = device_->driver();
  const cuda::ScopedContext scope(driver, device_->context());
  Status status = scope.status();
  if (status.ok()) {
    status = driver.ToStatus(driver->MemHostRegister(const_cast<std::byte*>(begin), pages->bytes,
                                                     cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap),
                             "cuMemHostRegister");
  }
  pages->is_pinned = status.ok();
  version_.fetch_add(1, std::memory_order_release);
  if (status.ok() || !not_pinned_.empty()) return;
  not_pinned_ = std::to_string(pages->bytes) +
                " bytes of slots are not pinned, so the CPU works on them, which is slow: " + status.message();
  Log(LogLevel::kWarn, -1, "%s", not_pinned_.c_str());
}

void PinnedSlots::Unpin(const std::byte* begin, Pages* pages) {
  if (!pages->is_pinned) return;
  const cuda::Driver& driver = device_->driver();
  const cuda::ScopedContext scope(driver, device_->context());
  // With its context the pinning is gone too.
  if (scope.status().ok()) driver->MemHostUnregister(const_cast<std::byte*>(begin));
  pages->is_pinned = false;
  version_.fetch_add(1, std::memory_order_release);
}

void PinnedSlots::PinFor(const CudaDevice& device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  device_ = &device;
  for (auto& [begin, pages] : pages_) Pin(begin, &pages);
}

void PinnedSlots::ForgetDevice() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [begin, pages] : pages_) Unpin(begin, &pages);
  device_ = nullptr;
}

const char* PinnedSlots::not_pinned() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return not_pinned_.empty() ? "" : not_pinned_.c_str();  // Its place may be written later.
}

std::vector<PinnedSlots::Range> PinnedSlots::Pinned() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Range> pinned;
  for (const auto& [begin, pages] : pages_) {
    if (pages.is_pinned) pinned.emplace_back(begin, pages.bytes);
  }
  return pinned;
}

}  // namespace annulus
