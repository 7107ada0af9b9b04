#include "collectives/cuda/mapped/virtual_range.h"

namespace annulus {

// Nothing is to be done about errors.
VirtualRange::~VirtualRange() {
  if (begin_ == 0) return;
  const cuda::Driver& driver = device_.driver();
  const DeviceScope scope(device_);
  if (!scope.status().ok()) return;
  cuda::DevicePointer next = begin_;
  for (const size_t bytes : pieces_) {
    driver->MemUnmap(next, bytes);
    next += bytes;
  }
  driver->MemAddressFree(begin_, bytes_);
}

Status VirtualRange::Reserve(size_t bytes) {
  ANNULUS_RETURN_IF_ERROR(
      ToStatus(device_.driver()->MemAddressReserve(&begin_, bytes, 0, 0, 0), "cuMemAddressReserve"));
  bytes_ = bytes;
  return Status();
}

Status VirtualRange::Add(cuda::AllocationHandle handle, size_t bytes) {
  if (bytes > bytes_ - mapped_) return Status::Invalid("more memory than addresses");
  pieces_.reserve(pieces_.size() + 1);
  ANNULUS_RETURN_IF_ERROR(ToStatus(device_.driver()->MemMap(begin_ + mapped_, bytes, 0, handle, 0), "cuMemMap"));
  pieces_.push_back(bytes);
  mapped_ += bytes;
  return Status();
}

Status VirtualRange::Open() {
  const cuda::AccessRight right{{cuda::LocationKind::kDevice, device_.ordinal()}, cuda::AccessFlags::kReadWrite};
  return ToStatus(device_.driver()->MemSetAccess(begin_, mapped_, &right, 1), "cuMemSetAccess");
}

}  // namespace annulus
