#include "collectives/calls/request_table.h"

#include <bit>
#include <cstdio>

#include "base/check.h"

namespace annulus {

void RequestTable::Grow() {
  const size_t block = owned_blocks_.size();
  ANNULUS_CHECK(block < kBlocks);
  const uint32_t before = kFirstBlock * ((1u << block) - 1);
  const uint32_t count = kFirstBlock << block;
  free_.reserve(before + count);
  owned_blocks_.reserve(kBlocks);
  auto slots = std::make_unique<Slot[]>(count);
  for (uint32_t i = count; i-- > 0;) {
    slots[i].index = before + i;
    free_.push_back(&slots[i]);
  }
  blocks_[block].store(slots.get(), std::memory_order_release);
  owned_blocks_.push_back(std::move(slots));
}

RequestTable::Owned RequestTable::Issue(Communicator* owner) {
  Slot* slot = nullptr;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (free_.empty()) Grow();
    slot = free_.back();
    free_.pop_back();
  }
  slot->owner.store(owner, std::memory_order_relaxed);
  slot->end.store(End::kFreed, std::memory_order_relaxed);  // Until another end is known.
  Renew(slot);
  return Owned(slot, GiveBack{this});
}

RequestTable::Slot* RequestTable::LaterSlotOf(uint32_t index) const {
  const int block = std::bit_width(index / kFirstBlock + 1) - 1;
  if (block >= kBlocks) return nullptr;
  Slot* const slots = blocks_[block].load(std::memory_order_acquire);
  return slots == nullptr ? nullptr : slots + (index - kFirstBlock * ((1u << block) - 1));
}

void RequestTable::Return(Request* request) {
  Slot* const slot = SlotOf(request);
  if (!Recycle(request)) return;
  std::lock_guard<std::mutex> lock(mu_);
  free_.push_back(slot);
}

Status RequestTable::WhyNot(RequestHandle handle) const {
  char name[32];
  std::snprintf(name, sizeof name, "request %#llx", static_cast<unsigned long long>(handle));
  const Slot* const slot = SlotOf(handle);
  const uint32_t now = slot == nullptr ? 0 : slot->generation.load(std::memory_order_acquire);
  if (slot == nullptr || GenerationOf(handle) > now)
    return Status::Invalid(std::string(name) + " is none: Annulus never gave it out");
  // Generations before the latest one leave no record except that they are over.
  if (GenerationOf(handle) + 1 < now)
    return Status::Invalid(std::string(name) + " was freed already, by itself or with its communicator");
  const bool destroyed = slot->end.load(std::memory_order_relaxed) == End::kCommunicatorDestroyed;
  return Status::Invalid(name +
                         std::string(destroyed ? " is gone: its communicator was destroyed" : " was freed already"));
}

}  // namespace annulus
