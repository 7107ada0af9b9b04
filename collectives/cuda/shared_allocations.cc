#include "collectives/cuda/shared_allocations.h"

#include <cstring>

#include "collectives/cuda/cuda_domain.h"

namespace annulus {

Status NameAllocation(CudaDomain* domain, int ordinal, SharedPlace* place) {
  const cuda::Driver& driver = domain->driver();
  const CudaDevice* device = nullptr;
  ANNULUS_RETURN_IF_ERROR(domain->Use(ordinal, &device));
  const cuda::ScopedContext scope(driver, device->context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  cuda::IpcMemHandle handle;
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(driver->IpcGetMemHandle(&handle, place->begin), "cuIpcGetMemHandle"));
  static_assert(sizeof handle.bytes == sizeof place->handle && sizeof device->uuid().bytes == sizeof place->device);
  std::memcpy(place->handle, handle.bytes, sizeof handle.bytes);
  std::memcpy(place->device, device->uuid().bytes, sizeof place->device);
  place->process = domain->process();
  domain->windows().CountDescribed();
  return Status();
}

Status ReachOwnAllocation(CudaDomain* domain, const CudaDevice& device, const SharedPlace& place, std::byte** begin) {
  *begin = cuda::FromDevice(place.begin);
  if (std::memcmp(place.device, device.uuid().bytes, sizeof place.device) == 0) return Status();
  cuda::PointerPlace known;
  ANNULUS_RETURN_IF_ERROR(domain->driver().PlaceOf(*begin, &known));
  if (known.type != cuda::MemoryType::kDevice) return {Code::kUnsupported, "it has changed since"};
  const CudaDevice* owner = nullptr;
  ANNULUS_RETURN_IF_ERROR(domain->Use(known.device, &owner));
  return domain->peers().Enable(device, *owner);
}

Status CheckSharedRange(CudaDomain* domain, const std::byte* memory, size_t bytes) {
  cuda::PointerPlace place;
  ANNULUS_RETURN_IF_ERROR(domain->driver().PlaceOf(memory, &place));
  const bool is_there = place.type == cuda::MemoryType::kDevice && place.begin != 0;
  if (is_there && bytes <= place.bytes - (cuda::ToDevice(memory) - place.begin)) return Status();
  return Status::Invalid("a rank shares less of its GPU's memory than it says");
}

}  // namespace annulus
