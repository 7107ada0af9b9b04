// VerbsReceiver: the receiving half of an end: checks each message as it completes, and fills receives in their order.
//
// Messages wait in a ring while no receive is posted. As many can wait as receives were posted to the device: a sender
// with credits sends no more.
//
// Threads: as the endpoint. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/verbs_format.h"
#include "transport/verbs/verbs_queue_pair.h"
#include "transport/verbs/verbs_returns.h"
#include "transport/verbs/verbs_sender.h"

namespace annulus {

// Memory of the receiver: slots that the peer writes, each with its header before it, and cells for its sends.
struct VerbsRecvMemory {
  std::byte* slots = nullptr;
  std::byte* cells = nullptr;
  uint32_t cell_key = 0;

  static size_t SlotBytes(int slots, size_t slot_bytes) {
    return static_cast<size_t>(slots) * VerbsSlotStride(slot_bytes);
  }
  static size_t CellBytes(int slots) { return VerbsQueueDepth(slots) * kVerbsCellBytes; }
};

class VerbsReceiver {
 public:
  // The pointers outlive it. `sender` gets the credits that messages return.
  VerbsReceiver(int slots, size_t slot_bytes, const VerbsRecvMemory& memory, VerbsQueuePair* pair, VerbsSender* sender,
                VerbsReturns* returns, VerbsFault* fault);

  // Sets the local key of the memory, once it is registered.
  void SetKey(uint32_t key) { memory_.cell_key = key; }
  // Posts all receives to the device.
  void PostCells();

  // Takes the message that a receive of the device completed with.
  void TakeCompletion(const ibv_wc& completion, uint32_t cell);

  // Queues `recv`. Returns false when as many receives as there are slots are posted or held.
  bool Post(Recv* recv);
  // Fills receives. Returns whether anything changed.
  bool Advance();
  void Release(Recv* recv);
  void FailAll(Code code);

  bool HasWork() const { return first_ != nullptr && waiting_ > 0; }
  bool has_messages() const { return waiting_ > 0; }
  // Messages that have arrived, modulo 2^32.
  uint32_t received() const { return received_; }

 private:
  // In Recv::cookie: the data is in a cell, not in a slot.
  static constexpr uint64_t kCell = uint64_t{1} << 32;

  struct Message {
    VerbsKind kind = VerbsKind::kUpdate;
    uint32_t value = 0;  // Cell, slot, or number of bytes that have arrived.
    VerbsHeader header;
  };

  const std::byte* HeaderOf(VerbsImmediate immediate, uint32_t cell) const;
  bool Check(const Message& message, const ibv_wc& completion);
  bool CheckPart(const Message& message, const ibv_wc& completion);
  bool CheckSlice(const Message& message, const ibv_wc& completion);
  bool Refuse(const char* what, uint64_t value);
  void Repost(uint32_t cell);
  bool Start(const Message& message);
  void Pop(Code code);

  const uint32_t slots_;
  const size_t slot_bytes_;
  const size_t stride_;
  const uint32_t depth_;
  VerbsRecvMemory memory_;
  VerbsQueuePair* const pair_;
  VerbsSender* const sender_;
  VerbsReturns* const returns_;
  VerbsFault* const fault_;

  std::vector<Message> messages_;  // A ring that starts at first_message_.
  uint32_t first_message_ = 0;
  uint32_t waiting_ = 0;
  uint32_t received_ = 0;
  uint32_t sequence_ = 0;     // Of the next slice.
  uint32_t slice_bytes_ = 0;  // Of the last slice that began to arrive.
  uint32_t slice_ready_ = 0;  // What of it has arrived.
  uint64_t occupied_ = 0;     // Slots that hold a slice, one bit each.
  uint32_t in_use_ = 0;       // Number of receives posted or held.
  Recv* first_ = nullptr;
  Recv* last_ = nullptr;
};

}  // namespace annulus
