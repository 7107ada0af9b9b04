#include "collectives/cuda/cuda_mappings.h"

#include <algorithm>
#include <cstring>

namespace annulus {
namespace {

bool IsSameAllocation(const SharedPlace& a, const SharedPlace& b) {
  return a.process == b.process && a.begin == b.begin && std::memcmp(a.handle, b.handle, sizeof a.handle) == 0;
}

// Whether a process can have only one of them.
bool Overlap(const SharedPlace& a, const SharedPlace& b) {
  return a.process == b.process && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

}  // namespace

Status CudaMappings::Hold(const CudaDevice& device, const SharedPlace& place, std::byte** begin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto is_it = [&](const Mapping& each) { return each.device == &device && IsSameAllocation(each.place, place); };
  auto found = std::ranges::find_if(mappings_, is_it);
  if (found == mappings_.end()) {
    MakeRoom(place);
    cuda::IpcMemHandle handle;
    static_assert(sizeof handle.bytes == sizeof place.handle);
    std::memcpy(handle.bytes, place.handle, sizeof place.handle);
    const cuda::Driver& driver = device.driver();
    const cuda::ScopedContext scope(driver, device.context());
    ANNULUS_RETURN_IF_ERROR(scope.status());
    cuda::DevicePointer memory = 0;
    ANNULUS_RETURN_IF_ERROR(
        driver.ToStatus(driver->IpcOpenMemHandle(&memory, handle, cuda::kIpcLazyPeerAccess), "cuIpcOpenMemHandle"));
    found = mappings_.insert(mappings_.end(), {place, &device, cuda::FromDevice(memory), 0, 0});
  }
  ++found->users;
  found->used = ++holds_;
  *begin = found->begin;
  return Status();
}

void CudaMappings::Release(const std::byte* begin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::ranges::find(mappings_, begin, &Mapping::begin);
  if (found != mappings_.end()) --found->users;
}

void CudaMappings::MakeRoom(const SharedPlace& place) {
  std::erase_if(mappings_, [&](const Mapping& each) {
    const bool is_replaced = each.users == 0 && Overlap(each.place, place);
    if (is_replaced) Close(each);
    return is_replaced;
  });
  if (mappings_.size() < kMost) return;
  const auto oldest = std::ranges::min_element(
      mappings_, {}, [](const Mapping& each) { return each.users > 0 ? UINT64_MAX : each.used; });
  if (oldest->users > 0) return;
  Close(*oldest);
  mappings_.erase(oldest);
}

// Nothing is to be done about an error.
void CudaMappings::Close(const Mapping& mapping) {
  const cuda::Driver& driver = mapping.device->driver();
  const cuda::ScopedContext scope(driver, mapping.device->context());
  if (scope.status().ok()) driver->IpcCloseMemHandle(cuda::ToDevice(mapping.begin));
}

void CudaMappings::Enter() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++queues_;
}

void CudaMappings::Leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--queues_ > 0) return;
  for (const Mapping& each : mappings_) Close(each);
  mappings_.clear();
}

}  // namespace annulus
