#include "collectives/cuda/cuda_exports.h"

#include <unistd.h>

#include <iterator>
#include <string>

#include "collectives/cuda/cuda_domain.h"

namespace annulus {

// Calls ask for each slice, of host memory too. Only memory of cuMemAlloc counts, which is the one that older ways of
// sharing take: what lies behind mapped addresses may change under one number.
bool CudaExports::RangeOf(const std::byte* data, size_t bytes, DeviceRange* range) const {
  if (!ranges_->Span(data)) return false;
  const cuda::Driver& driver = domain_->driver();
  uint64_t id = 0;
  unsigned type = 0;
  unsigned is_managed = 0;
  unsigned is_plain = 0;
  cuda::DevicePointer begin = 0;
  size_t all = 0;
  using Attribute = cuda::PointerAttribute;
  Attribute attributes[] = {Attribute::kBufferId,           Attribute::kMemoryType, Attribute::kIsManaged,
                            Attribute::kIsLegacyIpcCapable, Attribute::kRangeStart, Attribute::kRangeSize};
  void* values[] = {&id, &type, &is_managed, &is_plain, &begin, &all};
  const cuda::Result known =
      driver->PointerGetAttributes(std::size(attributes), attributes, values, cuda::ToDevice(data));
  const bool is_device =
      static_cast<cuda::MemoryType>(type) == cuda::MemoryType::kDevice && is_managed == 0 && is_plain != 0;
  if (known != cuda::Result::kSuccess || !is_device || id == 0 || begin == 0) return false;
  const size_t before = cuda::ToDevice(data) - begin;
  if (before > all || bytes > all - before) return false;
  *range = {id, cuda::FromDevice(begin), all};
  return true;
}

Status CudaExports::Find(const std::byte* data, const CudaDevice** device) const {
  cuda::PointerPlace place;
  ANNULUS_RETURN_IF_ERROR(domain_->driver().PlaceOf(data, &place));
  return domain_->Use(place.device, device);
}

// The driver takes whole pages. What else lies in the first and in the last one is memory of the same process.
Status CudaExports::Export(const DeviceRange& range, int* fd, uint64_t* offset) const {
  const cuda::Driver& driver = domain_->driver();
  const CudaDevice* device = nullptr;
  ANNULUS_RETURN_IF_ERROR(Find(range.begin, &device));
  if (!device->exports_memory()) {
    return {Code::kUnsupported, device->name() + " has no dma-bufs: its driver's open kernel modules are needed"};
  }
  const cuda::ScopedContext scope(driver, device->context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const cuda::DevicePointer begin = cuda::ToDevice(range.begin);
  const cuda::DevicePointer first = begin / page * page;
  const cuda::DevicePointer end = (begin + range.bytes + page - 1) / page * page;
  *offset = begin - first;
  return driver.ToStatus(driver->MemGetHandleForAddressRange(fd, first, end - first, cuda::RangeHandle::kDmaBuf, 0),
                         "cuMemGetHandleForAddressRange");
}

Status CudaExports::ShowWrites(const std::byte* data) const {
  const cuda::Driver& driver = domain_->driver();
  const CudaDevice* device = nullptr;
  ANNULUS_RETURN_IF_ERROR(Find(data, &device));
  if (device->rdma_writes() == CudaDevice::RdmaWrites::kSeen) return Status();
  if (device->rdma_writes() == CudaDevice::RdmaWrites::kHidden || driver->FlushGPUDirectRDMAWrites == nullptr) {
    return {Code::kUnsupported, device->name() + " does not see what network cards write"};
  }
  const cuda::ScopedContext scope(driver, device->context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  return driver.ToStatus(driver->FlushGPUDirectRDMAWrites(cuda::FlushTarget::kCurrentContext, cuda::RdmaScope::kOwner),
                         "cuFlushGPUDirectRDMAWrites");
}

Status CudaExports::CopyOut(const std::byte* data, size_t bytes, std::byte* slots) const {
  const cuda::Driver& driver = domain_->driver();
  const CudaDevice* device = nullptr;
  ANNULUS_RETURN_IF_ERROR(Find(data, &device));
  const cuda::ScopedContext scope(driver, device->context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  cuda::Stream stream = nullptr;
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(driver->StreamCreateWithPriority(&stream, cuda::kStreamNonBlocking, 0),
                                          "cuStreamCreateWithPriority"));
  cuda::Result result = driver.Copy(slots, data, bytes, false, stream);
  if (result == cuda::Result::kSuccess) result = driver->StreamSynchronize(stream);
  driver->StreamDestroy(stream);
  return driver.ToStatus(result, "copying from a GPU");
}

}  // namespace annulus
