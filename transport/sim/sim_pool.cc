#include "transport/sim/sim_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace annulus {
namespace {

constexpr size_t kSlotAlignment = 64;  // As Endpoint::AcquireSlot promises.
constexpr int kPoison = 0xdb;

}  // namespace

void SimPool::Delete::operator()(std::byte* memory) const {
  operator delete (memory, std::align_val_t{kSlotAlignment});
}

SimPool::SimPool(int slots, size_t slot_bytes)
    : slot_bytes_(slot_bytes),
      stride_((slot_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment),
      slots_(slots),
      memory_(static_cast<std::byte*>(operator new (stride_* slots, std::align_val_t{kSlotAlignment}))) {
  free_.reserve(slots);
  for (int i = 0; i < slots; ++i) Give(i);
}

std::byte* SimPool::Lend(SimClock* clock) {
  if (free_.empty()) return nullptr;
  std::swap(free_[clock->Between(0, static_cast<int64_t>(free_.size()) - 1)], free_.back());
  const int index = free_.back();
  free_.pop_back();
  return memory_.get() + index * stride_;
}

void SimPool::Give(int index) {
  ANNULUS_CHECK(std::find(free_.begin(), free_.end(), index) == free_.end());
  std::memset(memory_.get() + index * stride_, kPoison, slot_bytes_);
  free_.push_back(index);
}

int SimPool::IndexOf(const std::byte* data) const {
  if (data < memory_.get() || data >= memory_.get() + stride_ * slots_.size()) return -1;
  return static_cast<int>((data - memory_.get()) / stride_);
}

}  // namespace annulus
