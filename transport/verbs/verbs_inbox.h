// VerbsInbox: checks each message that completes, and keeps it until a receive is posted for it.
//
// As many messages can wait as receives were posted to the device: a sender with credits sends no more.
//
// Threads: as the endpoint. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/verbs/verbs_format.h"
#include "transport/verbs/verbs_queue_pair.h"
#include "transport/verbs/verbs_returns.h"

namespace annulus {

// Memory of the receiver: slots that the peer writes, each with its header before it, and cells for its sends.
struct VerbsRecvMemory {
  std::byte* slots = nullptr;
  std::byte* cells = nullptr;

  static size_t SlotBytes(int slots, size_t slot_bytes) {
    return static_cast<size_t>(slots) * VerbsSlotStride(slot_bytes);
  }
  static size_t CellBytes(int slots) { return VerbsQueueDepth(slots) * kVerbsCellBytes; }
};

struct VerbsMessage {
  VerbsKind kind = VerbsKind::kUpdate;
  uint32_t value = 0;  // Cell, slot, or number of bytes of the slice that have arrived.
  VerbsHeader header;  // Not of kPart.
};

class VerbsInbox {
 public:
  // `fault` outlives it.
  VerbsInbox(int slots, size_t slot_bytes, const VerbsRecvMemory& memory, VerbsFault* fault)
      : slots_(static_cast<uint32_t>(slots)),
        slot_bytes_(slot_bytes),
        depth_(VerbsQueueDepth(slots)),
        memory_(memory),
        fault_(fault),
        ring_(depth_) {}

  // Reads the message that a receive of the device completed with. Returns false when it is not allowed.
  bool Read(const ibv_wc& completion, uint32_t cell, VerbsMessage* message);
  // Keeps a slice or a part of one.
  void Keep(const VerbsMessage& message);

  bool empty() const { return waiting_ == 0; }
  // The message that came first; not while empty().
  const VerbsMessage& first() const { return ring_[first_]; }
  void DropFirst() {
    first_ = (first_ + 1) % depth_;
    --waiting_;
  }

  // The receiver has released the slot. Returns whether it held a slice.
  bool FreeSlot(uint32_t slot) {
    const uint64_t bit = uint64_t{1} << slot;
    const bool was_used = (used_ & bit) != 0;
    used_ &= ~bit;
    return was_used;
  }

  // Messages that have arrived, modulo 2^32.
  uint32_t received() const { return received_; }
  // Slices of which something has arrived, modulo 2^32, and whether the last one is not whole.
  uint32_t slices() const { return sequence_; }
  bool has_partial() const { return slice_ready_ < slice_bytes_; }
  // The rest of it comes another way.
  void EndPartial() { slice_ready_ = slice_bytes_; }
  // Whether `data` is in a slot or a cell.
  bool Has(const std::byte* data) const {
    return (data >= Slot(0) && data < Slot(slots_)) || (data >= Cell(0) && data < Cell(depth_));
  }
  // Where header and data of a slot, or of a cell, begin.
  std::byte* Slot(uint32_t slot) const { return memory_.slots + slot * VerbsSlotStride(slot_bytes_); }
  std::byte* Cell(uint32_t cell) const { return memory_.cells + cell * kVerbsCellBytes; }

 private:
  bool ReadHeader(VerbsImmediate immediate, uint32_t cell, uint32_t message_bytes, VerbsHeader* header);
  bool CheckSlice(VerbsImmediate immediate, const VerbsHeader& header);
  bool CheckPart(uint32_t end, uint32_t message_bytes);
  bool Refuse(const char* what, uint64_t value) {
    fault_->Set(what, value);
    return false;
  }

  const uint32_t slots_;
  const size_t slot_bytes_;
  const uint32_t depth_;
  const VerbsRecvMemory memory_;
  VerbsFault* const fault_;
  std::vector<VerbsMessage> ring_;
  uint32_t first_ = 0;
  uint32_t waiting_ = 0;
  uint32_t received_ = 0;
  uint32_t sequence_ = 0;     // Number of the next slice, modulo 2^32.
  uint32_t slice_bytes_ = 0;  // Size of the last slice that began to arrive.
  uint32_t slice_ready_ = 0;  // What of it has arrived.
  uint64_t used_ = 0;         // Slots that hold a slice, one bit each.
};

}  // namespace annulus
