// RequestTable: stores requests and maps handles to them. What a user passes as annulus_request_t* is not an address
// but a slot of this table and the generation of its content. So invalid handles are detected without access to freed
// memory: those that were freed, whose communicator is gone, or that never existed.
//
// Slots are reused with another generation, and keep the memory that their requests held. An owner may keep a few slots
// between its requests, so that the next one takes no lock.
//
// A process has one table, because handles of different communicators must differ too.
//
// Threads: any. Issuing and returning a request hold a mutex for a few instructions; looking up a handle, asking for a
// good end, letting go of it and renewing a request take none.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "collectives/calls/request.h"

namespace annulus {

class Communicator;

class RequestTable {
 public:
  struct GiveBack {
    void operator()(Request* request) const { table->Return(request); }
    RequestTable* table = nullptr;
  };
  using Owned = std::unique_ptr<Request, GiveBack>;

  // Returns a new request of `owner` with its own handle. Lets std::bad_alloc through. The table outlives it.
  Owned Issue(Communicator* owner);

  enum class End : uint8_t { kFreed, kCommunicatorDestroyed };
  // Invalidates the handle and records why. Call it with the owner's mutex held, as Find.
  void Retire(Request* request, End why) {
    Slot* const slot = SlotOf(request);
    const uint32_t generation = slot->generation.load(std::memory_order_relaxed);
    if (generation % 2 == 0) return;
    slot->end.store(why, std::memory_order_relaxed);
    slot->generation.store(generation + 1, std::memory_order_release);
  }

  // Invalidates the handle of a freed request, and resets the request. Its owner may keep it for Renew, unless this
  // returns false: then its slot is used up. As Retire.
  bool Recycle(Request* request) {
    Retire(request, End::kFreed);
    request->Clear();
    return SlotOf(request)->generation.load(std::memory_order_relaxed) < kLastGeneration;
  }
  // Makes a recycled request a new one of the same owner, with its own handle. As Retire.
  void Renew(Request* request) {
    Slot* const slot = SlotOf(request);
    const uint32_t generation = slot->generation.load(std::memory_order_relaxed) + 1;
    slot->handle = kTag << kTagShift | static_cast<RequestHandle>(generation) << kIndexBits | slot->index;
    // A reader of this generation also reads this owner, or a later one.
    slot->generation.store(generation, std::memory_order_release);
  }

  // Notes that the request has ended well, and everything that its owner writes at its end. Call it with the owner's
  // mutex held.
  void NoteGoodEnd(Request* request) { SlotOf(request)->ended_well.store(request->handle, std::memory_order_release); }
  // Whether the request of a valid handle is known to have ended well. Takes no lock.
  bool HasEndedWell(RequestHandle handle) const {
    const Slot* const slot = LiveSlotOf(handle);
    return slot != nullptr && slot->ended_well.load(std::memory_order_acquire) == handle;
  }

  // Invalidates the handle of a request that has ended well, as Retire, but takes no lock. Its owner then recycles it
  // when it next looks (IsLetGo). Returns false, and does nothing, for others.
  bool LetGo(RequestHandle handle) const {
    Slot* const slot = SlotOf(handle);
    if (slot == nullptr || slot->ended_well.load(std::memory_order_acquire) != handle) return false;
    uint32_t generation = GenerationOf(handle);
    return slot->generation.compare_exchange_strong(generation, generation + 1, std::memory_order_acq_rel);
  }
  bool IsLetGo(Request* request) const { return SlotOf(request)->generation.load(std::memory_order_acquire) % 2 == 0; }

  // The owner, as OwnerOf, and HasEndedWell, in one look.
  struct Seen {
    Communicator* owner = nullptr;
    bool has_ended_well = false;
  };
  Seen Look(RequestHandle handle) const {
    const Slot* const slot = LiveSlotOf(handle);
    if (slot == nullptr) return {};
    const bool has_ended_well = slot->ended_well.load(std::memory_order_acquire) == handle;
    return {slot->owner.load(std::memory_order_relaxed), has_ended_well};
  }
  // Owner of the request, null when the handle is invalid. Also works while the request is being retired.
  Communicator* OwnerOf(RequestHandle handle) const {
    const Slot* const slot = LiveSlotOf(handle);
    return slot == nullptr ? nullptr : slot->owner.load(std::memory_order_relaxed);
  }

  // The request, null when the handle is invalid. With the owner's mutex held.
  Request* Find(RequestHandle handle) const { return LiveSlotOf(handle); }

  // Error that explains why a handle is invalid.
  Status WhyNot(RequestHandle handle) const;

 private:
  struct Slot : Request {
    // Odd while a handle refers to this slot. Written under the owner's mutex, or while nobody else uses the slot.
    std::atomic<uint32_t> generation{0};
    std::atomic<Communicator*> owner{nullptr};
    std::atomic<End> end{End::kFreed};
    std::atomic<RequestHandle> ended_well{0};  // The latest request that has. Handles do not repeat.
    uint32_t index = 0;
  };

  // Layout of a handle, from the high bits: a byte that no address begins with, the generation, the index.
  static constexpr int kIndexBits = 32;
  static constexpr int kTagShift = 56;
  static constexpr RequestHandle kTag = 0xa7;
  static_assert(sizeof(void*) == sizeof(RequestHandle), "handles need pointers of 64 bits");
  // Slots are allocated in blocks, each twice as large as the previous one, so they never move and few pointers lead to
  // them.
  static constexpr uint32_t kFirstBlock = 64;
  static constexpr int kBlocks = kIndexBits - 6;  // kFirstBlock * (2^kBlocks - 1) slots: more than memory has room for.
  // A slot is not used beyond this generation, so that its handles do not repeat. That wastes a few hundred bytes every
  // eight million requests.
  static constexpr uint32_t kLastGeneration = 0xfffffe;

  static uint32_t GenerationOf(RequestHandle handle) { return handle >> kIndexBits & 0xffffff; }
  static Slot* SlotOf(Request* request) { return static_cast<Slot*>(request); }
  void Return(Request* request);
  // Null when no slot has that index, or the value is not a handle.
  Slot* SlotOf(RequestHandle handle) const {
    if (handle >> kTagShift != kTag || GenerationOf(handle) % 2 == 0) return nullptr;
    const uint32_t index = static_cast<uint32_t>(handle);
    if (index >= kFirstBlock) return LaterSlotOf(index);
    Slot* const slots = blocks_[0].load(std::memory_order_acquire);
    return slots == nullptr ? nullptr : slots + index;
  }
  // The same for an index beyond the first block.
  Slot* LaterSlotOf(uint32_t index) const;
  Slot* LiveSlotOf(RequestHandle handle) const {
    Slot* const slot = SlotOf(handle);
    const bool live = slot != nullptr && slot->generation.load(std::memory_order_acquire) == GenerationOf(handle);
    return live ? slot : nullptr;
  }
  void Grow();  // With mu_ held.

  std::array<std::atomic<Slot*>, kBlocks> blocks_{};
  std::mutex mu_;
  std::vector<std::unique_ptr<Slot[]>> owned_blocks_;
  std::vector<Slot*> free_;  // Has room for all slots.
};

}  // namespace annulus
