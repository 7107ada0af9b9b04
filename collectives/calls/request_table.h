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
    // One that was retired while it was driven may have ended well since.
    const bool is_let_go = IsLetGo(request);
    slot->ended_well.store(0, std::memory_order_relaxed);
    if (generation % 2 == 0) return;
    if (!is_let_go) slot->end.store(why, std::memory_order_relaxed);
    slot->generation.store(generation + 1, std::memory_order_release);
  }

  // Invalidates the handle of a freed request, and resets the request. Its owner may keep it for Renew, unless this
  // returns false: then its slot is used up. As Retire.
  bool Recycle(Request* request) {
    Retire(request, End::kFreed);
    request->Clear();
    return SlotOf(request)->generation.load(std::memory_order_relaxed) < kLastGeneration;
  }
  // Whether Recycle will return true.
  bool MayRenew(const Request* request) const {
    return static_cast<const Slot*>(request)->generation.load(std::memory_order_relaxed) + 1 < kLastGeneration;
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
  // Whether the handle is valid and its request is known to have ended well. Takes no lock.
  bool HasEndedWell(RequestHandle handle) const {
    const Slot* const slot = PlaceOf(handle);
    return slot != nullptr && slot->ended_well.load(std::memory_order_acquire) == handle;
  }

  // Invalidates the handle of a request that has ended well, as Retire, but takes no lock. Its owner then recycles it
  // when it next looks (IsLetGo). Returns false, and does nothing, for others.
  bool LetGo(RequestHandle handle) const {
    Slot* const slot = PlaceOf(handle);
    return slot != nullptr && slot->ended_well.compare_exchange_strong(handle, kLetGo, std::memory_order_acq_rel);
  }
  bool IsLetGo(Request* request) const { return SlotOf(request)->ended_well.load(std::memory_order_acquire) == kLetGo; }

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
    // The handle once the request has ended well, then kLetGo if the handle is given up without the lock; else 0.
    std::atomic<RequestHandle> ended_well{0};
    uint32_t index = 0;
  };

  // Layout of a handle, from the high bits: a byte that no address begins with, the generation, the index.
  static constexpr int kIndexBits = 32;
  static constexpr int kTagShift = 56;
  static constexpr RequestHandle kTag = 0xa7;
  static constexpr RequestHandle kLetGo = kTag << kTagShift;  // No handle, and no address.
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
    return handle >> kTagShift == kTag && GenerationOf(handle) % 2 == 1 ? PlaceOf(handle) : nullptr;
  }
  // The slot that a handle with these low bits has. Null when no slot has that index.
  Slot* PlaceOf(RequestHandle handle) const {
    const uint32_t index = static_cast<uint32_t>(handle);
    if (index >= kFirstBlock) return LaterSlotOf(index);
    Slot* const slots = blocks_[0].load(std::memory_order_acquire);
    return slots == nullptr ? nullptr : slots + index;
  }
  // The same for an index beyond the first block.
  Slot* LaterSlotOf(uint32_t index) const;
  Slot* LiveSlotOf(RequestHandle handle) const {
    Slot* const slot = SlotOf(handle);
    const bool live = slot != nullptr && slot->generation.load(std::memory_order_acquire) == GenerationOf(handle) &&
                      slot->ended_well.load(std::memory_order_relaxed) != kLetGo;
    return live ? slot : nullptr;
  }
  void Grow();  // With mu_ held.

  std::array<std::atomic<Slot*>, kBlocks> blocks_{};
  std::mutex mu_;
  std::vector<std::unique_ptr<Slot[]>> owned_blocks_;
  std::vector<Slot*> free_;  // Has room for all slots.
};

}  // namespace annulus
