#include "collectives/cuda/cuda_exports.h"

#include <unistd.h>

#include <iterator>
#include <string>
#include <utility>

#include "collectives/cuda/cuda_domain.h"

namespace annulus {

std::string CudaExports::missing() const {
  const bool has = domain_->driver()->MemGetHandleForAddressRange != nullptr;
  return has ? "" : "CUDA's driver has no cuMemGetHandleForAddressRange";
}

// Calls ask for each slice, of host memory too, and those in streams must not have the driver asked: their memory lies
// in the host's, if between that of GPUs. Only memory of cuMemAlloc counts, which is the one that older ways of sharing
// take: what lies behind mapped addresses may change under one number.
bool CudaExports::RangeOf(const std::byte* data, size_t bytes, DeviceRange* range) const {
  if (!ranges_->Has(data)) return false;
  const cuda::Driver& driver = domain_->driver();
  uint64_t id = 0;
  unsigned type = 0;
  unsigned is_managed = 0;
  unsigned is_plain = 0;
  int device = -1;
  cuda::DevicePointer begin = 0;
  size_t all = 0;
  using Attribute = cuda::PointerAttribute;
  Attribute attributes[] = {Attribute::kBufferId,           Attribute::kMemoryType, Attribute::kIsManaged,
                            Attribute::kIsLegacyIpcCapable, Attribute::kRangeStart, Attribute::kRangeSize,
                            Attribute::kDeviceOrdinal};
  void* values[] = {&id, &type, &is_managed, &is_plain, &begin, &all, &device};
  const cuda::Result known =
      driver->PointerGetAttributes(std::size(attributes), attributes, values, cuda::ToDevice(data));
  const bool is_device = static_cast<cuda::MemoryType>(type) == cuda::MemoryType::kDevice && is_managed == 0;
  if (known != cuda::Result::kSuccess || !is_device) return false;
  range->device = device;
  if (is_plain == 0 || id == 0 || begin == 0) return false;
  const size_t before = cuda::ToDevice(data) - begin;
  if (before > all || bytes > all - before) return false;
  *range = {id, cuda::FromDevice(begin), all, device};
  return true;
}

// The driver takes whole pages. What else lies in the first and in the last one is memory of the same process.
Status CudaExports::Export(const DeviceRange& range, int* fd, uint64_t* offset) const {
  const cuda::Driver& driver = domain_->driver();
  const CudaDevice* device = nullptr;
  ANNULUS_RETURN_IF_ERROR(domain_->Use(range.device, &device));
  if (!device->exports_memory()) {
    return {Code::kUnsupported, device->name() + " has no dma-bufs: its driver's open kernel modules are needed"};
  }
  const cuda::ScopedContext scope(driver, device->context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  ANNULUS_RETURN_IF_ERROR(Prepare(*device));
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const cuda::DevicePointer begin = cuda::ToDevice(range.begin);
  const cuda::DevicePointer first = begin / page * page;
  const cuda::DevicePointer end = (begin + range.bytes + page - 1) / page * page;
  *offset = begin - first;
  const cuda::Result result =
      driver->MemGetHandleForAddressRange(fd, first, end - first, cuda::RangeHandle::kDmaBuf, 0);
  Status status = driver.ToStatus(result, "cuMemGetHandleForAddressRange");
  return result == cuda::Result::kNotSupported ? Status(Code::kUnsupported, status.message()) : status;
}

// The questions about where devices are take up none: whoever asks may never have a buffer there.
std::string CudaExports::PciAddress(int device) const {
  const cuda::Driver& driver = domain_->driver();
  cuda::Device handle = 0;
  if (driver->DeviceGet(&handle, device) != cuda::Result::kSuccess) return "";
  return driver.PciAddress(handle);
}

template <class Condition>
bool CudaExports::FindNumber(int* number, Condition is_it) const {
  const cuda::Driver& driver = domain_->driver();
  for (*number = 0; *number < kMostGpus; ++*number) {
    cuda::Device handle = 0;
    if (driver->DeviceGet(&handle, *number) != cuda::Result::kSuccess) return false;
    if (is_it(handle)) return true;
  }
  return false;
}

int CudaExports::CurrentDevice() const {
  cuda::Device current = 0;
  int number = -1;
  if (domain_->driver()->CtxGetDevice(&current) != cuda::Result::kSuccess) return -1;
  return FindNumber(&number, [current](cuda::Device each) { return each == current; }) ? number : -1;
}

std::string CudaExports::Name(int device) const {
  const cuda::Driver& driver = domain_->driver();
  std::array<char, 128> name{};
  cuda::Device handle = 0;
  if (driver->DeviceGet(&handle, device) != cuda::Result::kSuccess) return "";
  driver->DeviceGetName(name.data(), static_cast<int>(name.size()) - 1, handle);
  return name.data();
}

// No GPU has atomic operations on another's memory by PCIe, so what has them is a link of the GPUs' own.
DeviceReach CudaExports::ReachOf(int device, const std::string& pci_address) const {
  const cuda::Driver& driver = domain_->driver();
  cuda::Device own = 0;
  cuda::Device other = 0;
  int number = 0;
  const auto is_it = [&](cuda::Device each) {
    other = each;
    return driver.PciAddress(each) == pci_address;
  };
  if (pci_address.empty() || driver->DeviceGetP2PAttribute == nullptr) return DeviceReach::kUnknown;
  if (driver->DeviceGet(&own, device) != cuda::Result::kSuccess || !FindNumber(&number, is_it)) {
    return DeviceReach::kUnknown;
  }
  int has_access = 0;
  int has_atomics = 0;
  for (const auto& [value, attribute] : {std::pair{&has_access, cuda::PeerAttribute::kAccess},
                                         std::pair{&has_atomics, cuda::PeerAttribute::kNativeAtomics}}) {
    if (driver->DeviceGetP2PAttribute(value, attribute, own, other) != cuda::Result::kSuccess) {
      return DeviceReach::kUnknown;
    }
  }
  if (has_access == 0) return DeviceReach::kNone;
  return has_atomics != 0 ? DeviceReach::kLink : DeviceReach::kPci;
}

DeviceWrites CudaExports::WritesTo(int device) const {
  switch (At(device).device->rdma_writes()) {
    case CudaDevice::RdmaWrites::kSeen:
      return DeviceWrites::kSeen;
    case CudaDevice::RdmaWrites::kFlushed:
      return domain_->driver()->FlushGPUDirectRDMAWrites != nullptr ? DeviceWrites::kFlushed : DeviceWrites::kHidden;
    case CudaDevice::RdmaWrites::kHidden:
      break;
  }
  return DeviceWrites::kHidden;
}

Status CudaExports::FlushWrites(int device) const {
  const cuda::Driver& driver = domain_->driver();
  const cuda::ScopedContext scope(driver, At(device).device->context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  return driver.ToStatus(driver->FlushGPUDirectRDMAWrites(cuda::FlushTarget::kCurrentContext, cuda::RdmaScope::kOwner),
                         "cuFlushGPUDirectRDMAWrites");
}

// In its context.
Status CudaExports::Prepare(const CudaDevice& device) const {
  const cuda::Driver& driver = domain_->driver();
  if (device.ordinal() < 0 || device.ordinal() >= kMostGpus) {
    return {Code::kUnsupported, device.name() + " is number " + std::to_string(device.ordinal())};
  }
  std::atomic<const Gpu*>& gpu = gpus_[static_cast<size_t>(device.ordinal())];
  const Gpu* before = gpu.load(std::memory_order_acquire);
  if (before != nullptr && before->device == &device) return Status();
  cuda::Stream made = nullptr;
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(driver->StreamCreateWithPriority(&made, cuda::kStreamNonBlocking, 0),
                                          "cuStreamCreateWithPriority"));
  auto fresh = std::make_unique<const Gpu>(Gpu{&device, made});
  {
    const std::lock_guard<std::mutex> lock(made_mutex_);
    made_.reserve(made_.size() + 1);
    if (gpu.compare_exchange_strong(before, fresh.get(), std::memory_order_acq_rel)) {
      made_.push_back(std::move(fresh));
      return Status();
    }
  }
  driver->StreamDestroy(made);  // Another thread was faster.
  return Status();
}

Status CudaExports::CheckPinned(const std::byte* memory, size_t bytes) const {
  cuda::PointerPlace place;
  ANNULUS_RETURN_IF_ERROR(domain_->driver().PlaceOf(memory, &place));
  const bool is_pinned =
      place.type == cuda::MemoryType::kHost && place.begin + place.bytes >= cuda::ToDevice(memory) + bytes;
  return is_pinned ? Status() : Status(Code::kUnsupported, "the memory to which a GPU copies is not pinned");
}

void CudaExports::End() {
  const cuda::Driver& driver = domain_->driver();
  for (const auto& gpu : made_) {
    const DeviceScope scope(*gpu->device);
    if (scope.status().ok()) driver->StreamDestroy(gpu->copies);
  }
  made_.clear();
}

Status CudaExports::CopyOut(int device, const std::byte* data, size_t bytes, std::byte* slots, uint32_t* done) const {
  const Gpu& gpu = At(device);
  return CopyOutIn(*gpu.device, gpu.copies, data, bytes, slots, done);
}

Status CudaExports::CheckCopies(int device) const { return CheckStream(*At(device).device, At(device).copies); }

// A copy to memory that is not pinned would be waited for. The stream is no blocking one, so the default streams do not
// matter either. The driver is asked what is pinned, as of all memory.
Status CudaExports::CopyOutIn(const CudaDevice& device, cuda::Stream stream, const std::byte* data, size_t bytes,
                              std::byte* slots, uint32_t* done) const {
  const cuda::Driver& driver = domain_->driver();
  ANNULUS_RETURN_IF_ERROR(CheckPinned(slots, bytes));
  ANNULUS_RETURN_IF_ERROR(CheckPinned(reinterpret_cast<std::byte*>(done), sizeof *done));
  const cuda::ScopedContext scope(driver, device.context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(driver.Copy(slots, data, bytes, false, stream), "cuMemcpyAsync"));
  return driver.ToStatus(driver->StreamWriteValue32(stream, cuda::ToDevice(done), 1, cuda::kWriteValueDefault),
                         "cuStreamWriteValue32");
}

Status CudaExports::CheckStream(const CudaDevice& device, cuda::Stream stream) const {
  const cuda::Driver& driver = domain_->driver();
  const DeviceScope scope(device);
  ANNULUS_RETURN_IF_ERROR(scope.status());
  const cuda::Result result = driver->StreamQuery(stream);
  if (result == cuda::Result::kNotReady) return Status();
  return driver.ToStatus(result, "a GPU's work failed: cuStreamQuery");
}

// After an error the GPU does no work of the context any more.
void CudaExports::AwaitStream(const CudaDevice& device, cuda::Stream stream) const {
  const DeviceScope scope(device);
  if (scope.status().ok()) domain_->driver()->StreamSynchronize(stream);
}

void CudaExports::TellWay(const void* links, const std::string& way) const {
  const std::lock_guard<std::mutex> lock(ways_mutex_);
  if (way.empty()) {
    ways_.erase(links);
  } else {
    ways_[links] = way;
  }
}

std::string CudaExports::WayOf(const void* links) const {
  const std::lock_guard<std::mutex> lock(ways_mutex_);
  const auto found = ways_.find(links);
  return found != ways_.end() ? found->second : "";
}

}  // namespace annulus
