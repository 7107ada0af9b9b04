#include "collectives/cuda/cuda_windows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "collectives/cuda/cuda_domain.h"
#include "collectives/cuda/shared_allocations.h"

namespace annulus {

Status CudaWindows::Describe(const DeviceRange& range, SharedDeviceMemory* shared) {
  SharedPlace place;
  place.begin = cuda::ToDevice(range.begin);
  place.bytes = range.bytes;
  ANNULUS_RETURN_IF_ERROR(NameAllocation(domain_, range.device, &place));
  *shared = std::bit_cast<SharedDeviceMemory>(place);
  return Status();
}

Status CudaWindows::Open(int device, const SharedDeviceMemory& shared, size_t bytes, const std::byte** begin) {
  const auto place = std::bit_cast<SharedPlace>(shared);
  if (place.files != 0 || place.offset != 0 || place.bytes != bytes || place.begin + bytes < place.begin)
    return Status::Invalid("a rank does not share its GPU's memory as ranks do");
  const CudaDevice* used = nullptr;
  ANNULUS_RETURN_IF_ERROR(domain_->Use(device, &used));
  cuda::Uuid of;
  std::memcpy(of.bytes, place.device, sizeof of.bytes);
  ANNULUS_RETURN_IF_ERROR(domain_->peers().Check(*used, of));
  ANNULUS_RETURN_IF_ERROR(exports_->PrepareCopies(*used));
  const bool is_own = place.process == domain_->process();
  std::byte* memory = nullptr;
  domain_->mappings().Enter();
  Status status = is_own ? ReachOwnAllocation(domain_, *used, place, &memory)
                         : domain_->mappings().Hold(*used, place, nullptr, &memory);
  if (!is_own && status.code() == Code::kSystem) domain_->peers().Refuse(*used, of, status);
  if (!status.ok()) {
    if (domain_->mappings().Leave()) domain_->pieces().Clear();
    return status;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    windows_.push_back({device, memory, bytes, is_own});
  }
  status = CheckSharedRange(domain_, memory, bytes);
  if (!status.ok()) Close(device, memory);
  *begin = memory;
  return status;
}

void CudaWindows::Close(int device, const std::byte* begin) {
  bool is_own = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto is_it = [=](const Window& each) { return each.device == device && each.begin == begin; };
    const auto found = std::ranges::find_if(windows_, is_it);
    if (found == windows_.end()) return;
    is_own = found->is_own;
    windows_.erase(found);
  }
  const CudaDevice* used = nullptr;
  if (!is_own && domain_->Use(device, &used).ok()) domain_->mappings().Release(*used, begin);
  if (domain_->mappings().Leave()) domain_->pieces().Clear();
}

Status CudaWindows::CheckSlots(int device, const std::byte* slots, size_t bytes) {
  const CudaDevice* used = nullptr;
  ANNULUS_RETURN_IF_ERROR(domain_->Use(device, &used));
  return exports_->CheckPinned(slots, bytes);
}

bool CudaWindows::Has(int device, const std::byte* memory, size_t bytes) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::ranges::any_of(windows_, [=](const Window& each) {
    if (each.device != device || memory < each.begin) return false;
    const auto offset = static_cast<size_t>(memory - each.begin);
    return offset <= each.bytes && bytes <= each.bytes - offset;
  });
}

}  // namespace annulus
