#include "collectives/cuda/cuda_allocations.h"

#include <string>
#include <utility>

#include "collectives/cuda/cuda_domain.h"

namespace annulus {
namespace {

Status Zero(const cuda::Driver& driver, const VirtualRange& range, size_t bytes) {
  cuda::Stream stream = nullptr;
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(driver->StreamCreateWithPriority(&stream, cuda::kStreamNonBlocking, 0),
                                          "cuStreamCreateWithPriority"));
  Status status =
      driver.ToStatus(driver->MemsetD8Async(cuda::ToDevice(range.begin()), 0, bytes, stream), "cuMemsetD8Async");
  if (status.ok()) status = driver.ToStatus(driver->StreamSynchronize(stream), "cuStreamSynchronize");
  driver->StreamDestroy(stream);
  return status;
}

// In the device's context.
Status Fill(const CudaDevice& device, size_t bytes, VirtualRange* range) {
  const cuda::Driver& driver = device.driver();
  cuda::AllocationProperties properties;
  properties.location.number = device.ordinal();
  properties.handles = device.Has(cuda::DeviceAttribute::kVirtualMemoryFiles) ? cuda::ShareableHandle::kFile
                                                                              : cuda::ShareableHandle::kNone;
  properties.rdma = device.Has(cuda::DeviceAttribute::kVirtualMemoryRdma) ? 1 : 0;
  size_t unit = 0;
  ANNULUS_RETURN_IF_ERROR(
      driver.ToStatus(driver->MemGetAllocationGranularity(&unit, &properties, cuda::Granularity::kMinimum),
                      "cuMemGetAllocationGranularity"));
  const size_t whole = (bytes + unit - 1) / unit * unit;
  if (whole < bytes) return {Code::kOutOfMemory, "more than there are addresses"};
  cuda::AllocationHandle handle = 0;
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(driver->MemCreate(&handle, whole, &properties, 0), "cuMemCreate"));
  Status status = range->Reserve(whole);
  if (status.ok()) status = range->Add(handle, whole);
  driver->MemRelease(handle);
  ANNULUS_RETURN_IF_ERROR(std::move(status));
  ANNULUS_RETURN_IF_ERROR(range->Open());
  return Zero(driver, *range, whole);
}

}  // namespace

Status CudaAllocations::Allocate(CudaDomain* domain, int device, size_t bytes, void** memory) {
  if (bytes == 0) return Status::Invalid("bytes is 0");
  const CudaDevice* used = nullptr;
  ANNULUS_RETURN_IF_ERROR(domain->UseNow(device, &used));
  if (!domain->driver().has_virtual_memory() || !used->Has(cuda::DeviceAttribute::kVirtualMemory))
    return {Code::kUnsupported, used->name() + " or its driver has no virtual memory API"};
  const cuda::ScopedContext scope(domain->driver(), used->context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  auto range = std::make_unique<VirtualRange>(*used);
  ANNULUS_RETURN_IF_ERROR(Fill(*used, bytes, range.get()));
  void* const begin = range->begin();
  const std::lock_guard<std::mutex> lock(mutex_);
  ranges_.emplace(begin, std::move(range));
  *memory = begin;
  return Status();
}

bool CudaAllocations::Free(void* memory) {
  std::unique_ptr<VirtualRange> leaving;  // Outlives the lock.
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = ranges_.find(memory);
  if (found == ranges_.end()) return false;
  leaving = std::move(found->second);
  ranges_.erase(found);
  return true;
}

}  // namespace annulus
