#include "collectives/cuda/cuda_mappings.h"

#include <algorithm>
#include <cstring>
#include <new>

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

Status CudaMappings::Open(const CudaDevice& device, const SharedPlace& place, std::byte** begin) {
  cuda::IpcMemHandle handle;
  static_assert(sizeof handle.bytes == sizeof place.handle);
  std::memcpy(handle.bytes, place.handle, sizeof place.handle);
  const cuda::Driver& driver = device.driver();
  const cuda::ScopedContext scope(driver, device.context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  cuda::DevicePointer memory = 0;
  ANNULUS_RETURN_IF_ERROR(
      driver.ToStatus(driver->IpcOpenMemHandle(&memory, handle, cuda::kIpcLazyPeerAccess), "cuIpcOpenMemHandle"));
  *begin = cuda::FromDevice(memory);
  return Status();
}

// Nothing is to be done about an error.
void CudaMappings::Close(const Mapping& mapping) {
  const cuda::Driver& driver = mapping.device->driver();
  const cuda::ScopedContext scope(driver, mapping.device->context());
  if (scope.status().ok()) driver->IpcCloseMemHandle(cuda::ToDevice(mapping.begin));
}

Status CudaMappings::Hold(const CudaDevice& device, const SharedPlace& place, std::byte** begin) {
  *begin = nullptr;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_unsettled = [&](const Mapping& each) { return each.is_changing && Overlap(each.place, place); };
  changed_.wait(lock, [&] { return std::ranges::none_of(mappings_, is_unsettled); });
  const auto is_it = [&](const Mapping& each) { return each.device == &device && IsSameAllocation(each.place, place); };
  const auto found = std::ranges::find_if(mappings_, is_it);
  if (found != mappings_.end()) {
    ++found->users;
    found->used = ++holds_;
    *begin = found->begin;
    return Status();
  }
  Mappings fresh;  // From here to the end nothing may fail for lack of memory: others wait for what is changing.
  const auto made = fresh.insert(fresh.end(), {place, &device, nullptr, 1, ++holds_, true});
  const Leaving leaving = MakeRoom(place);
  mappings_.splice(mappings_.end(), fresh);
  lock.unlock();
  for (const auto& each : leaving) Close(*each);
  Status opened;
  try {
    opened = Open(device, place, begin);
  } catch (const std::bad_alloc&) {
    opened = Status(Code::kOutOfMemory);
  }
  lock.lock();
  Erase(leaving);
  made->begin = *begin;
  made->is_changing = false;
  if (!opened.ok()) mappings_.erase(made);
  changed_.notify_all();
  return opened;
}

void CudaMappings::Release(const std::byte* begin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::ranges::find(mappings_, begin, &Mapping::begin);
  if (found != mappings_.end()) --found->users;
}

CudaMappings::Leaving CudaMappings::MakeRoom(const SharedPlace& place) {
  Leaving leaving;
  leaving.reserve(mappings_.size());
  const auto take = [&leaving](Mappings::iterator each) {
    each->is_changing = true;
    leaving.push_back(each);
  };
  for (auto each = mappings_.begin(); each != mappings_.end(); ++each) {
    if (each->users == 0 && Overlap(each->place, place)) take(each);
  }
  if (mappings_.size() - leaving.size() >= kMost) {
    const auto age = [](const Mapping& each) { return each.users > 0 || each.is_changing ? UINT64_MAX : each.used; };
    const auto oldest = std::ranges::min_element(mappings_, {}, age);
    if (age(*oldest) != UINT64_MAX) take(oldest);
  }
  return leaving;
}

void CudaMappings::Erase(const Leaving& closed) {
  for (const auto& each : closed) mappings_.erase(each);
}

void CudaMappings::Enter() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++queues_;
}

void CudaMappings::Leave() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (--queues_ > 0) return;
  Leaving leaving;
  leaving.reserve(mappings_.size());
  for (auto each = mappings_.begin(); each != mappings_.end(); ++each) {
    if (!each->is_changing) leaving.push_back(each);
    each->is_changing = true;
  }
  lock.unlock();
  for (const auto& each : leaving) Close(*each);
  lock.lock();
  Erase(leaving);
  changed_.notify_all();
}

}  // namespace annulus
