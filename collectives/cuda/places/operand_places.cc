#include "collectives/cuda/places/operand_places.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace annulus {

Status OperandPlaces::Find(const SliceOp& op) {
  const uint64_t version = slots_.version();
  if (version != version_) pinned_ = slots_.Pinned();
  version_ = version;
  device_ = -1;
  is_mixed_ = false;
  places_.clear();
  devices_.clear();
  const size_t bytes = op.count * TypeBytes(op.type);
  for (int i = 0; i < op.num_sources; ++i) ANNULUS_RETURN_IF_ERROR(FindOne(SourceOf(op, i), bytes));
  for (const std::byte* dst : op.dst) ANNULUS_RETURN_IF_ERROR(FindOne(dst, bytes));
  if (is_mixed_) FindReader(op);
  return Status();
}

void OperandPlaces::FindReader(const SliceOp& op) {
  const size_t bytes = op.count * TypeBytes(op.type);
  for (const int device : devices_) {
    bool has_all = device >= 0;
    for (size_t i = 0; i < devices_.size() && has_all; ++i) {
      if (devices_[i] < 0 || devices_[i] == device) continue;
      has_all = std::cmp_less(i, op.num_sources) && reads_(device, SourceOf(op, static_cast<int>(i)), bytes);
    }
    if (!has_all) continue;
    device_ = device;
    is_mixed_ = false;
    return;
  }
}

bool OperandPlaces::Has(Place place) const { return std::find(places_.begin(), places_.end(), place) != places_.end(); }

bool OperandPlaces::IsInSlots(const std::byte* memory, size_t bytes) const {
  const auto after =
      std::upper_bound(pinned_.begin(), pinned_.end(), memory,
                       [](const std::byte* pointer, const auto& range) { return pointer < range.first; });
  if (after == pinned_.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return memory + bytes <= begin + size;
}

Status OperandPlaces::FindOne(const std::byte* memory, size_t bytes) {
  Place place = Place::kPageable;
  cuda::PointerPlace known;
  if (memory == nullptr) {
    place = Place::kNone;
  } else if (IsInSlots(memory, bytes)) {
    place = Place::kPinned;
  } else {
    ANNULUS_RETURN_IF_ERROR(driver_.PlaceOf(memory, &known));
    // The user's own pinned memory, if one registration covers all of it: between two registrations there may be a gap.
    const auto offset = static_cast<size_t>(cuda::ToDevice(memory) - known.begin);
    const bool is_whole = known.begin != 0 && offset <= known.bytes && bytes <= known.bytes - offset;
    if (known.type == cuda::MemoryType::kHost && is_whole) place = Place::kPinned;
  }
  if (known.type == cuda::MemoryType::kDevice) {
    place = Place::kDevice;
    is_mixed_ |= device_ >= 0 && device_ != known.device;
    device_ = known.device;
  }
  places_.push_back(place);
  devices_.push_back(place == Place::kDevice ? known.device : -1);
  return Status();
}

}  // namespace annulus
