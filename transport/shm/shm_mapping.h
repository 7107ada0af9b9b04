// ShmMapping: the memory file of one link, mapped. shm_format.h defines its content.
//
// The file is anonymous (memfd): it has no name that could collide or be left behind, needs no /dev/shm, and disappears
// with its last mapping. It is sealed against shrinking, so a peer cannot take mapped pages away.
//
// Threads: Create and Open may be called from any thread; the accessors give each end what it may write.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/status.h"
#include "transport/memory/slot_memory.h"
#include "transport/shm/shm_format.h"

namespace annulus {

// Bounds on what a peer's header may ask for: far above every setting, far below an overflow of 64 bits.
constexpr uint32_t kShmMaxSlots = 4096;
constexpr uint64_t kShmMaxSlotBytes = uint64_t{1} << 30;

// Offsets of all parts. They depend only on the number and the size of the slots.
struct ShmLayout {
  static ShmLayout For(uint32_t slots, uint64_t slot_bytes);

  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
  uint64_t slot_stride = 0;
  uint64_t ring_entries = 0;
  uint64_t return_entries = 0;
  uint64_t ring_offset[2] = {};
  uint64_t return_offset[2] = {};
  uint64_t claims_offset[2] = {};
  uint64_t rings_end = 0;  // The space from here to the slots is unused.
  uint64_t slots_offset[2] = {};
  uint64_t total_bytes = 0;
  bool huge = false;  // The slots begin at a 2 MiB page and fill at least one.
};

class ShmMapping {
 public:
  // Creates and maps a new file. Errors: kInvalidArgument, kSystem.
  static Status Create(int slots, size_t slot_bytes, std::unique_ptr<ShmMapping>* mapping);

  // Maps a peer's file. Takes ownership of `fd` in any case. Errors: kProtocol naming the field, kSystem.
  static Status Open(int fd, std::unique_ptr<ShmMapping>* mapping);

  ~ShmMapping();
  ShmMapping(const ShmMapping&) = delete;
  ShmMapping& operator=(const ShmMapping&) = delete;

  // The memory file; -1 after CloseFd. The mapping does not need it any more.
  int fd() const { return fd_; }
  void CloseFd();

  const ShmLayout& layout() const { return layout_; }
  // `side` 0 is the lower rank.
  ShmEnd* end(int side) const;
  ShmDirection direction(int sending_side) const;
  // The link's nonce, as it was when the file was created or opened, and the place of it in a mapping, in bytes.
  const ShmNonce& nonce() const { return nonce_; }
  static constexpr uint64_t kNonceOffset = offsetof(ShmHeader, nonce);
  // The slots of both directions.
  std::span<std::byte> slots() const;

  // Registers the slots with the devices of this process, until they are unmapped. `memory` outlives the mapping; null:
  // there is no device that needs it. Errors: those of SlotRegistration::Make.
  Status RegisterSlots(SlotMemory* memory);
  // Where the slots are registered; null: nowhere.
  SlotMemory* slot_memory() const { return registered_.memory(); }

 private:
  explicit ShmMapping(int fd) : fd_(fd) {}
  Status Map();
  // Tells the peer where that end's process has the mapping.
  void TellPlace(int side) { end(side)->mapping.store(reinterpret_cast<uintptr_t>(base_), std::memory_order_release); }

  int fd_;
  ShmNonce nonce_{};
  ShmLayout layout_;
  std::byte* base_ = nullptr;
  SlotRegistration registered_;
};

}  // namespace annulus
