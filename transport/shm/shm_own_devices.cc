#include "transport/shm/shm_own_devices.h"

#include <algorithm>

#include "base/log.h"

namespace annulus {

bool ShmOwnDevices::Find(const std::byte* data, size_t bytes, ShmPlace* place) {
  DeviceRange range;
  if (sharing_ == nullptr || !exports_->RangeOf(data, bytes, &range)) return false;
  const auto has_id = [&range](const Known& each) { return each.range.id == range.id; };
  const auto found = std::ranges::find_if(known_, has_id);
  Known* const known = found != known_.end() ? &*found : Learn(range);
  if (known == nullptr) return false;
  if (known->state == State::kUntold && send_({ShmNotice::kSharesDevice, known->region, range.bytes}, &known->shared))
    known->state = State::kTold;
  if (known->state != State::kOpened) return false;
  *place = {known->region, static_cast<uint64_t>(data - range.begin)};
  return true;
}

ShmOwnDevices::Known* ShmOwnDevices::Learn(const DeviceRange& range) {
  ForgetFreed();
  if (known_.size() + to_forget_.size() >= kShmMostDeviceRegions) return nullptr;
  Known known;
  known.range = range;
  known.region = kShmOnDevice | ++last_;
  if (const Status described = sharing_->Describe(range, &known.shared); !described.ok()) {
    known.state = State::kStays;
    Log(LogLevel::kInfo, -1, "links over shared memory copy memory of GPU %d: %s", range.device,
        described.message().c_str());
  }
  known_.push_back(known);
  return &known_.back();
}

void ShmOwnDevices::ForgetFreed() {
  described_ = sharing_->described();
  std::erase_if(known_, [this](const Known& each) {
    DeviceRange now;
    if (exports_->RangeOf(each.range.begin, 1, &now) && now.id == each.range.id) return false;
    if (each.state == State::kTold || each.state == State::kOpened) to_forget_.push_back(each.region);
    return true;
  });
  // In their order: the peer is never told of more than it has room for.
  const auto is_unsent = [this](uint64_t region) { return !send_({ShmNotice::kForgets, region, 0}, nullptr); };
  to_forget_.erase(to_forget_.begin(), std::ranges::find_if(to_forget_, is_unsent));
}

bool ShmOwnDevices::OnOpened(uint64_t region) {
  if (region <= kShmOnDevice || region > (kShmOnDevice | last_)) return false;
  // It may be forgotten since.
  const auto found = std::ranges::find(known_, region, &Known::region);
  if (found != known_.end() && found->state == State::kTold) found->state = State::kOpened;
  return true;
}

}  // namespace annulus
