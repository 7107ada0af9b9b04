#include "transport/shm/shm_peer_devices.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "transport/shm/shm_own_devices.h"
#include "transport/shm/shm_regions.h"

namespace annulus {
namespace {

// Time between two looks at whether the device still works: each is a call of its driver. A copy of a slice takes some
// tens of microseconds.
constexpr Nanoseconds kCheckInterval = 10 * kMillisecond;

// Time that a device has to end a copy that nobody wants any more, before the driver is asked to wait for it. A copy
// that is under way when its slots or its source go would be a fault of the device, and the end of the program's use of
// it.
constexpr Nanoseconds kMostPolling = kSecond;

}  // namespace

ShmPeerDevices::ShmPeerDevices(const DeviceExports* exports, SlotMemory* memory, std::span<std::byte> slots, int peer,
                               Answer answer)
    : exports_(exports),
      sharing_(exports != nullptr ? exports->sharing() : nullptr),
      slots_(slots),
      peer_(peer),
      answer_(std::move(answer)),
      word_(sharing_ != nullptr ? memory : nullptr, SlotMemory::kAlignment) {}

ShmPeerDevices::~ShmPeerDevices() {
  const Deadline end = DeadlineAfter(kMostPolling);
  while (copy_.is_under_way && CheckCopy().would_block() && Now() < end) {
  }
  if (copy_.is_under_way) sharing_->AwaitCopies(copy_.device);
  for (Region& region : regions_) Close(&region);
}

bool ShmPeerDevices::OnShared(const ShmNotice& notice, const SharedDeviceMemory& shared) {
  const bool is_sound = notice.region > kShmOnDevice && notice.bytes > 0 && notice.bytes <= kShmMostRegionBytes;
  if (!is_sound || Find(notice.region) != nullptr || regions_.size() == kShmMostDeviceRegions) return false;
  Region region;
  region.id = notice.region;
  region.bytes = notice.bytes;
  region.shared = shared;
  regions_.push_back(region);
  owes_ |= sharing_ != nullptr && word_.data() != nullptr;
  return true;
}

bool ShmPeerDevices::OnForgotten(uint64_t id) {
  Region* const region = Find(id);
  if (region == nullptr || region->is_forgotten) return false;
  region->is_forgotten = true;
  if (region->holds > 0) return true;
  Close(region);
  regions_.erase(regions_.begin() + (region - regions_.data()));
  return true;
}

void ShmPeerDevices::Open() {
  DeviceRange range;
  for (Region& region : regions_) {
    if (reader_ != nullptr && region.state == State::kRefused && region.retries.MayTry()) region.state = State::kTold;
  }
  const auto is_told = [](const Region& region) { return region.state == State::kTold; };
  if (reader_ != nullptr && std::ranges::any_of(regions_, is_told)) exports_->RangeOf(reader_, 1, &range);
  owes_ = false;
  for (Region& region : regions_) {
    if (region.is_forgotten) continue;
    if (region.state == State::kTold && range.device >= 0) {
      const Status opened = OpenFor(range.device, &region);
      region.state = opened.ok() ? State::kOpened : State::kRefused;
      if (!opened.ok()) region.retries.Failed();
      if (!opened.ok() && told_.IsNew(opened.message()))
        Log(LogLevel::kInfo, -1, "slices in memory of the GPU of rank %d are copied through host memory: %s", peer_,
            opened.message().c_str());
    }
    if (region.state == State::kOpened && answer_(region.id)) region.state = State::kAnswered;
    owes_ |= region.state != State::kAnswered;
  }
  reader_ = nullptr;
}

// What the CPU has to read is copied to slots: so these are checked before the peer names anything.
Status ShmPeerDevices::OpenFor(int device, Region* region) {
  ANNULUS_RETURN_IF_ERROR(sharing_->CheckSlots(device, slots_.data(), slots_.size()));
  ANNULUS_RETURN_IF_ERROR(sharing_->CheckSlots(device, word_.data(), word_.bytes()));
  ANNULUS_RETURN_IF_ERROR(sharing_->Open(device, region->shared, region->bytes, &region->begin));
  region->device = device;
  if (!std::exchange(has_opened_, true))
    Log(LogLevel::kInfo, -1, "GPU %d reads slices in the memory of the GPU of rank %d", device, peer_);
  return Status();
}

ShmPeerDevices::Region* ShmPeerDevices::Find(uint64_t id) {
  const auto found = std::ranges::find(regions_, id, &Region::id);
  return found != regions_.end() ? &*found : nullptr;
}

void ShmPeerDevices::Close(Region* region) {
  if (region->begin != nullptr) sharing_->Close(region->device, region->begin);
}

// The peer may name what it has been answered only.
const std::byte* ShmPeerDevices::Hold(const ShmPlace& place, uint32_t bytes) {
  Region* const region = Find(place.region);
  if (region == nullptr || region->state != State::kAnswered || region->is_forgotten) return nullptr;
  if (place.offset > region->bytes || bytes > region->bytes - place.offset) return nullptr;
  ++region->holds;
  return region->begin + place.offset;
}

void ShmPeerDevices::Release(uint64_t id) {
  Region* const region = Find(id);
  ANNULUS_CHECK(region != nullptr && region->holds > 0);
  if (--region->holds > 0 || !region->is_forgotten) return;
  Close(region);
  regions_.erase(regions_.begin() + (region - regions_.data()));
}

bool ShmPeerDevices::IsRead(uint64_t id, const std::byte* reader) const {
  DeviceRange range;
  exports_->RangeOf(reader, 1, &range);
  const auto found = std::ranges::find(regions_, id, &Region::id);
  return found != regions_.end() && found->device == range.device;
}

Status ShmPeerDevices::BeginCopy(uint64_t id, const std::byte* data, uint32_t bytes, std::byte* slot) {
  const Region* const region = Find(id);
  ANNULUS_CHECK(region != nullptr && !copy_.is_under_way);
  auto* const word = reinterpret_cast<uint32_t*>(word_.data());
  __atomic_store_n(word, 0, __ATOMIC_RELAXED);
  ANNULUS_RETURN_IF_ERROR(sharing_->CopyOut(region->device, data, bytes, slot, word));
  copy_ = {true, region->device, DeadlineAfter(kCheckInterval)};
  return Status();
}

Status ShmPeerDevices::CheckCopy() {
  if (__atomic_load_n(reinterpret_cast<uint32_t*>(word_.data()), __ATOMIC_ACQUIRE) == 1) {
    copy_.is_under_way = false;
    return Status();
  }
  if (Now() < copy_.check) return Status::WouldBlock();
  copy_.check = DeadlineAfter(kCheckInterval);
  Status status = sharing_->CheckCopies(copy_.device);
  copy_.is_under_way = status.ok();
  return status.ok() ? Status::WouldBlock() : status;
}

}  // namespace annulus
