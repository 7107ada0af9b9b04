#include "collectives/cuda/pinned/pinned_slots.h"

#include <algorithm>
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

// Marks pages and gives the mutex back, as long as it lives.
class PinnedSlots::Change {
 public:
  Change(PinnedSlots* slots, Pages* pages) : slots_(slots), pages_(pages) {
    pages_->state = State::kChanging;
    slots_->mutex_.unlock();
  }
  ~Change() {
    slots_->mutex_.lock();
    pages_->state = becomes;
    slots_->version_.fetch_add(1, std::memory_order_release);
    slots_->changed_.notify_all();
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

  State becomes = State::kPlain;

 private:
  PinnedSlots* const slots_;
  Pages* const pages_;
};

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
  const auto after = pages_.upper_bound(begin);
  const bool overlaps = before != pages_.end() && begin < before->first + before->second.bytes;
  if (overlaps || (after != pages_.end() && after->first < end)) {
    left_out_.emplace(begin, size);
    return;
  }
  Pages* const pages = &pages_[begin];
  *pages = {.bytes = size, .users = 1};
  if (device_ != nullptr) Pin(begin, pages);
}

void PinnedSlots::Remove(const std::byte* slots, size_t bytes) {
  const auto [begin, size] = PagesOf(slots, bytes);
  std::unique_lock<std::mutex> lock(mutex_);
  if (const auto left_out = left_out_.find({begin, size}); left_out != left_out_.end()) {
    left_out_.erase(left_out);
    return;
  }
  const auto found = Before(begin);
  if (found == pages_.end() || begin + size > found->first + found->second.bytes || --found->second.users > 0) return;
  changed_.wait(lock, [found] { return found->second.state != State::kChanging; });
  if (found->second.state == State::kPinned) Unpin(found->first, &found->second);
  Note(&found->second, "");
  pages_.erase(found);
  changed_.notify_all();
}

void PinnedSlots::Pin(const std::byte* begin, Pages* pages) {
  const CudaDevice& device = *device_.load();
  const size_t bytes = pages->bytes;
  const cuda::Driver& driver = device.driver();
  Status status;
  {
    Change change(this, pages);
    const DeviceScope scope(device);
    status = scope.status();
    if (status.ok()) {
      const cuda::Result result = driver->MemHostRegister(const_cast<std::byte*>(begin), bytes,
                                                          cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap);
      if (result == cuda::Result::kSuccess) change.becomes = State::kPinned;
      status = driver.ToStatus(result, "cuMemHostRegister");
    }
  }
  if (status.ok()) return Note(pages, "");
  if (device.is_known_reset()) return;  // The next device pins them.
  Note(pages, std::to_string(bytes) +
                  " bytes of slots are not pinned, so the CPU works on them, which is slow: " + status.message());
  if (!std::exchange(has_told_, true)) Log(LogLevel::kWarn, -1, "%s", pages->why_not.c_str());
}

void PinnedSlots::Note(Pages* pages, std::string why_not) {
  if (!pages->why_not.empty()) --not_pinned_;
  pages->why_not = std::move(why_not);
  if (!pages->why_not.empty()) ++not_pinned_;
}

void PinnedSlots::Unpin(const std::byte* begin, Pages* pages) {
  const CudaDevice& device = *device_.load();
  const Change change(this, pages);
  const DeviceScope scope(device);
  // With its context the pinning is gone too.
  if (scope.status().ok()) device.driver()->MemHostUnregister(const_cast<std::byte*>(begin));
}

void PinnedSlots::PinFor(const CudaDevice& device) {
  const bool are_lost = AreLostFor(device);
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !pins_all_; });
  const CudaDevice* const before = device_.load();
  if (before != nullptr && !(are_lost && before->is_known_reset())) return;
  Unlearn();
  device_ = &device;
  pins_all_ = true;
  struct End {
    ~End() {
      slots->pins_all_ = false;
      slots->changed_.notify_all();
    }
    PinnedSlots* slots;
  };
  const End end{this};  // With the lock.
  // Those that come meanwhile are pinned by whoever adds them. Those that are being pinned stay.
  for (auto& [begin, pages] : pages_) {
    if (pages.state == State::kPlain && pages.users > 0) Pin(begin, &pages);
  }
}

// Those that a thread is changing are plain when it has done: it works in the context that is gone.
void PinnedSlots::Unlearn() {
  for (auto& [begin, pages] : pages_) {
    if (pages.state == State::kPinned) pages.state = State::kPlain;
  }
  version_.fetch_add(1, std::memory_order_release);
}

void PinnedSlots::ForgetDevice() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (auto& [begin, pages] : pages_) {
    if (pages.state == State::kPinned) Unpin(begin, &pages);
  }
  device_ = nullptr;
}

std::string PinnedSlots::not_pinned() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (not_pinned_ == 0) return "";
  return std::ranges::find_if(pages_, [](const auto& each) { return !each.second.why_not.empty(); })->second.why_not;
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
