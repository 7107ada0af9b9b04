// RequestTable: where requests live, and which handles stand for one. What a user passes as annulus_request_t* is not
// an address but a place in this table and the generation of what lies there, so a handle that was freed, whose
// communicator is gone or that never was one is told from a good one without looking at memory that is no longer there.
//
// Places are used again, with another generation, and with the memory that their requests held.
//
// One table serves a process: handles of different communicators must differ too.
//
// Threads: any. Issue and giving back hold a mutex for a few instructions; looking a handle up takes none.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "collectives/comm/request.h"

namespace annulus {

class Communicator;

class RequestTable {
 public:
  struct GiveBack {
    void operator()(Request* request) const { table->Return(request); }
    RequestTable* table = nullptr;
  };
  using Owned = std::unique_ptr<Request, GiveBack>;

  // A new request of `owner`, with a handle of its own. Lets std::bad_alloc through. The table outlives it.
  Owned Issue(Communicator* owner);

  enum class End : uint8_t { kFreed, kCommunicatorDestroyed };
  // From now on the handle stands for nothing, and this is why. With the owner's mutex held, as Find is called.
  void Retire(Request* request, End why);

  // Whose request this is, null when the handle stands for none (any more). Answers also when it is retired meanwhile.
  Communicator* OwnerOf(RequestHandle handle) const;

  // The request, null when the handle stands for none (any more). With the owner's mutex held.
  Request* Find(RequestHandle handle) const;

  // What is wrong with a handle that stands for nothing.
  Status WhyNot(RequestHandle handle) const;

 private:
  struct Slot {
    // Odd while a handle stands for this slot. Written under the owner's mutex, or with the slot out of all hands.
    std::atomic<uint32_t> generation{0};
    std::atomic<Communicator*> owner{nullptr};
    std::atomic<End> end{End::kFreed};
    uint32_t index = 0;
    Request request;
  };

  // A handle, from the high bits: a byte that no address begins with, the generation, the index.
  static constexpr int kIndexBits = 32;
  static constexpr int kTagShift = 56;
  static constexpr RequestHandle kTag = 0xa7;
  static_assert(sizeof(void*) == sizeof(RequestHandle), "handles need pointers of 64 bits");
  // Slots come in blocks, each twice as large as the one before: they never move, and few pointers lead to them.
  static constexpr uint32_t kFirstBlock = 64;
  static constexpr int kBlocks = kIndexBits - 6;  // kFirstBlock * (2^kBlocks - 1) slots: more than memory has room for.
  // A slot that has had so many generations is left alone: its handles must not come round again. That leaves a few
  // hundred bytes behind every eight million requests.
  static constexpr uint32_t kLastGeneration = 0xfffffe;

  static uint32_t GenerationOf(RequestHandle handle) { return handle >> kIndexBits & 0xffffff; }
  void Return(Request* request);
  // Null when no slot has that index, or the handle is none.
  Slot* SlotOf(RequestHandle handle) const;
  Slot* LiveSlotOf(RequestHandle handle) const;
  void Grow();  // With mu_ held.

  std::array<std::atomic<Slot*>, kBlocks> blocks_{};
  std::mutex mu_;
  std::vector<std::unique_ptr<Slot[]>> owned_blocks_;
  std::vector<Slot*> free_;  // Has room for all slots.
};

}  // namespace annulus
