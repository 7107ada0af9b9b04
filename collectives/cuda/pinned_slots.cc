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

PinnedSlots::AllPages::iterator PinnedSlots::Before(const std::byte* memory) {
  const auto after = pages_.upper_bound(memory);
  return after == pages_.begin() ? pages_.end() : std::prev(after);
}

void PinnedSlots::Add(const std::byte* slots, size_t bytes) {
  const auto [begin, size] = PagesOf(slots, bytes);
  const std::byte* const end = begin + size;
  std::unique_lock<std::mutex> lock(mutex_);
  auto before = Before(begin);
  const auto covers = [&] { return before != pages_.end() && end <= before->first + before->second.bytes; };
  for (; covers() && before->second.users == 0; before = Before(begin)) changed_.wait(lock);
  if (covers()) {
    ++before->second.users;
    return;
  }
  // A range that shares only some pages stays as it is: the driver pins a page once.
  if (before != pages_.end() && begin < before->first + before->second.bytes) return;
  const auto after = pages_.upper_bound(begin);
  if (after != pages_.end() && after->first < end) return;
  Pages* const pages = &pages_[begin];
  *pages = {.bytes = size, .users = 1};
  if (device_ != nullptr) Pin(begin, pages, &lock);
}

void PinnedSlots::Remove(const std::byte* slots, size_t bytes) {
  const auto [begin, size] = PagesOf(slots, bytes);
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = Before(begin);
  if (found == pages_.end() || begin + size > found->first + found->second.bytes || --found->second.users > 0) return;
  changed_.wait(lock, [found] { return found->second.state != State::kChanging; });
  if (found->second.state == State::kPinned) Unpin(found->first, &found->second, &lock);
  pages_.erase(found);
  changed_.notify_all();
}

void PinnedSlots::Pin(const std::byte* begin, Pages* pages, std::unique_lock<std::mutex>* lock) {
  const CudaDevice& device = *device_;
  const size_t bytes = pages->bytes;
  pages->state = State::kChanging;
  lock->unlock();
  const cuda::Driver& driver = device.driver();
  Status status;
  {
    const cuda::ScopedContext scope(driver, device.context());
    status = scope.status();
    if (status.ok()) {
      status = driver.ToStatus(driver->MemHostRegister(const_cast<std::byte*>(begin), bytes,
                                                       cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap),
                               "cuMemHostRegister");
    }
  }
  lock->lock();
  pages->state = status.ok() ? State::kPinned : State::kPlain;
  version_.fetch_add(1, std::memory_order_release);
  changed_.notify_all();
  if (status.ok() || !not_pinned_.empty()) return;
  not_pinned_ = std::to_string(bytes) +
                " bytes of slots are not pinned, so the CPU works on them, which is slow: " + status.message();
  Log(LogLevel::kWarn, -1, "%s", not_pinned_.c_str());
}

void PinnedSlots::Unpin(const std::byte* begin, Pages* pages, std::unique_lock<std::mutex>* lock) {
  const CudaDevice& device = *device_;
  pages->state = State::kChanging;
  lock->unlock();
  {
    const cuda::ScopedContext scope(device.driver(), device.context());
    // With its context the pinning is gone too.
    if (scope.status().ok()) device.driver()->MemHostUnregister(const_cast<std::byte*>(begin));
  }
  lock->lock();
  pages->state = State::kPlain;
  version_.fetch_add(1, std::memory_order_release);
}

void PinnedSlots::PinFor(const CudaDevice& device) {
  std::unique_lock<std::mutex> lock(mutex_);
  device_ = &device;
  // Those that come meanwhile are pinned by whoever adds them. Those that are being pinned stay.
  for (auto& [begin, pages] : pages_) {
    if (pages.state == State::kPlain && pages.users > 0) Pin(begin, &pages, &lock);
  }
}

void PinnedSlots::ForgetDevice() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (auto& [begin, pages] : pages_) {
    if (pages.state == State::kPinned) Unpin(begin, &pages, &lock);
  }
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
    if (pages.state == State::kPinned) pinned.emplace_back(begin, pages.bytes);
  }
  return pinned;
}

}  // namespace annulus
