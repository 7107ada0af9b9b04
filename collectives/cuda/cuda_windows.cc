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
  std::byte* memory = nullptr;
  ANNULUS_RETURN_IF_ERROR(Reach(*used, place, &memory));
  const Window window{used, memory, bytes, place.process == domain_->process()};
  Status status = CheckSharedRange(domain_, memory, bytes);
  if (status.ok()) status = Add(*used, window);
  if (!status.ok()) Leave(*used, window);
  *begin = memory;
  return status;
}

Status CudaWindows::Reach(const CudaDevice& device, const SharedPlace& place, std::byte** memory) {
  cuda::Uuid of;
  std::memcpy(of.bytes, place.device, sizeof of.bytes);
  ANNULUS_RETURN_IF_ERROR(domain_->peers().Check(device, of));
  domain_->mappings().Enter();
  const bool is_own = place.process == domain_->process();
  Status reached = is_own ? ReachOwnAllocation(domain_, device, place, memory)
                          : domain_->mappings().Hold(device, place, nullptr, memory);
  if (reached.ok()) return reached;
  if (!is_own && reached.code() == Code::kSystem) domain_->peers().Refuse(device, of, reached);
  if (domain_->mappings().Leave()) domain_->pieces().Clear();
  return reached;
}

void CudaWindows::Leave(const CudaDevice& device, const Window& window) {
  if (!window.is_own) domain_->mappings().Release(device, window.begin);
  if (domain_->mappings().Leave()) domain_->pieces().Clear();
}

Status CudaWindows::Add(const CudaDevice& device, const Window& window) {
  const cuda::Driver& driver = domain_->driver();
  const auto is_it = [&device](const Reader& each) { return each.device == &device; };
  const cuda::ScopedContext scope(driver, device.context());
  ANNULUS_RETURN_IF_ERROR(scope.status());
  cuda::Stream stream = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::ranges::find_if(readers_, is_it);
    if (found != readers_.end()) {
      ++found->windows;
      windows_.push_back(window);
      return Status();
    }
  }
  ANNULUS_RETURN_IF_ERROR(driver.ToStatus(driver->StreamCreateWithPriority(&stream, cuda::kStreamNonBlocking, 0),
                                          "cuStreamCreateWithPriority"));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    windows_.push_back(window);
    const auto found = std::ranges::find_if(readers_, is_it);
    if (found == readers_.end()) {
      readers_.push_back({&device, stream, 1});
      return Status();
    }
    ++found->windows;
  }
  driver->StreamDestroy(stream);  // Another thread was faster.
  return Status();
}

void CudaWindows::Close(int device, const std::byte* begin) {
  Window closed;
  Reader reader;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto is_it = [=](const Window& each) { return each.device->ordinal() == device && each.begin == begin; };
    const auto found = std::ranges::find_if(windows_, is_it);
    if (found == windows_.end()) return;
    closed = *found;
    windows_.erase(found);
    const auto of = std::ranges::find_if(readers_, [&](const Reader& each) { return each.device == closed.device; });
    reader = *of;
    if (--of->windows == 0) readers_.erase(of);
  }
  if (reader.windows == 1) {
    const DeviceScope scope(*reader.device);
    if (scope.status().ok()) domain_->driver()->StreamDestroy(reader.stream);
  }
  Leave(*reader.device, closed);
}

CudaWindows::Reader CudaWindows::ReaderOf(int device) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto is_it = [=](const Reader& each) { return each.device->ordinal() == device; };
  return *std::find_if(readers_.rbegin(), readers_.rend(), is_it);
}

Status CudaWindows::CopyOut(int device, const std::byte* data, size_t bytes, std::byte* slots, uint32_t* done) {
  const Reader reader = ReaderOf(device);
  return exports_->CopyOutIn(*reader.device, reader.stream, data, bytes, slots, done);
}

Status CudaWindows::CheckCopies(int device) {
  const Reader reader = ReaderOf(device);
  return exports_->CheckStream(*reader.device, reader.stream);
}

void CudaWindows::AwaitCopies(int device) {
  const Reader reader = ReaderOf(device);
  exports_->AwaitStream(*reader.device, reader.stream);
}

Status CudaWindows::CheckSlots(int device, const std::byte* slots, size_t bytes) {
  const CudaDevice* used = nullptr;
  ANNULUS_RETURN_IF_ERROR(domain_->Use(device, &used));
  return exports_->CheckPinned(slots, bytes);
}

bool CudaWindows::Has(int device, const std::byte* memory, size_t bytes) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::ranges::any_of(windows_, [=](const Window& each) {
    if (each.device->ordinal() != device || memory < each.begin) return false;
    const auto offset = static_cast<size_t>(memory - each.begin);
    return offset <= each.bytes && bytes <= each.bytes - offset;
  });
}

}  // namespace annulus
