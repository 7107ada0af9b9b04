#include "collectives/cuda/operand_places.h"

#include <algorithm>
#include <iterator>

namespace annulus {

void OperandPlaces::Find(const SliceOp& op) {
  const uint64_t version = slots_.version();
  if (version != version_) pinned_ = slots_.Pinned();
  version_ = version;
  device_ = -1;
  is_mixed_ = false;
  places_.clear();
  const size_t bytes = op.count * TypeBytes(op.type);
  for (int i = 0; i < op.num_sources; ++i) places_.push_back(PlaceOf(SourceOf(op, i), bytes));
  for (const std::byte* dst : op.dst) places_.push_back(dst != nullptr ? PlaceOf(dst, bytes) : Place::kPinned);
}

bool OperandPlaces::Has(Place place) const { return std::find(places_.begin(), places_.end(), place) != places_.end(); }

Place OperandPlaces::PlaceOf(const std::byte* memory, size_t bytes) {
  const auto after =
      std::upper_bound(pinned_.begin(), pinned_.end(), memory,
                       [](const std::byte* pointer, const auto& range) { return pointer < range.first; });
  if (after != pinned_.begin()) {
    const auto& [begin, size] = *std::prev(after);
    if (memory + bytes <= begin + size) return Place::kPinned;
  }
  const cuda::PointerPlace place = driver_.PlaceOf(memory);
  if (place.type == cuda::MemoryType::kDevice) {
    is_mixed_ |= device_ >= 0 && device_ != place.device;
    device_ = place.device;
    return Place::kDevice;
  }
  // The user's own pinned memory, if all of it is.
  const bool is_pinned = place.type == cuda::MemoryType::kHost && bytes > 0 &&
                         driver_.PlaceOf(memory + bytes - 1).type == cuda::MemoryType::kHost;
  return is_pinned ? Place::kPinned : Place::kPageable;
}

}  // namespace annulus
