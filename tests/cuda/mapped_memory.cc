#include "tests/cuda/mapped_memory.h"

#include <algorithm>
#include <utility>

namespace annulus {

Status MappedMemory::Make(const cuda::Driver& driver, cuda::Context context, const MappedShape& shape,
                          std::unique_ptr<MappedMemory>* memory) {
  if (!driver.has_virtual_memory()) return {Code::kUnsupported, "the driver has no virtual memory API"};
  const cuda::ScopedContext scope(driver, context);
  ANNULUS_RETURN_IF_ERROR(scope.status());
  std::unique_ptr<MappedMemory> made(new MappedMemory(driver, context, shape));
  ANNULUS_RETURN_IF_ERROR(made->Reserve(shape));
  for (size_t piece = 0; piece < made->mapped_.size(); ++piece) ANNULUS_RETURN_IF_ERROR(made->Map(piece));
  *memory = std::move(made);
  return Status();
}

MappedMemory::~MappedMemory() {
  const cuda::ScopedContext scope(driver_, context_);
  if (!scope.status().ok() || begin_ == 0) return;
  for (size_t piece = 0; piece < mapped_.size(); ++piece) {
    if (mapped_[piece]) Unmap(piece);
  }
  driver_->MemAddressFree(begin_, bytes());
}

Status MappedMemory::Reserve(const MappedShape& shape) {
  size_t granularity = 0;
  ANNULUS_RETURN_IF_ERROR(
      ToStatus(driver_->MemGetAllocationGranularity(&granularity, &properties_, cuda::Granularity::kMinimum),
               "cuMemGetAllocationGranularity"));
  const size_t wanted = std::max<size_t>(shape.piece_bytes == 0 ? shape.bytes : shape.piece_bytes, 1);
  piece_bytes_ = (wanted + granularity - 1) / granularity * granularity;
  mapped_.resize(std::max<size_t>((shape.bytes + piece_bytes_ - 1) / piece_bytes_, 1));
  return ToStatus(driver_->MemAddressReserve(&begin_, bytes(), 0, 0, 0), "cuMemAddressReserve");
}

// As PyTorch does, which keeps its handles no longer than it needs them.
Status MappedMemory::Map(size_t piece) {
  const cuda::DevicePointer at = begin_ + piece * piece_bytes_;
  cuda::AllocationHandle handle = 0;
  ANNULUS_RETURN_IF_ERROR(ToStatus(driver_->MemCreate(&handle, piece_bytes_, &properties_, 0), "cuMemCreate"));
  const cuda::Result mapped = driver_->MemMap(at, piece_bytes_, 0, handle, 0);
  driver_->MemRelease(handle);
  ANNULUS_RETURN_IF_ERROR(ToStatus(mapped, "cuMemMap"));
  mapped_[piece] = true;
  const cuda::AccessRight right{properties_.location, cuda::AccessFlags::kReadWrite};
  return ToStatus(driver_->MemSetAccess(at, piece_bytes_, &right, 1), "cuMemSetAccess");
}

void MappedMemory::Unmap(size_t piece) {
  driver_->MemUnmap(begin_ + piece * piece_bytes_, piece_bytes_);
  mapped_[piece] = false;
}

Status MappedMemory::Replace(size_t piece, bool is_shareable) {
  properties_.handles = is_shareable ? cuda::ShareableHandle::kFile : cuda::ShareableHandle::kNone;
  const cuda::ScopedContext scope(driver_, context_);
  ANNULUS_RETURN_IF_ERROR(scope.status());
  Unmap(piece);
  return Map(piece);
}

}  // namespace annulus
