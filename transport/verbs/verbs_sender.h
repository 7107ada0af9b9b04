// VerbsSender: the sending half of an end: lends slots, writes slices into the peer's slots, and completes sends.
//
// Slices leave from slots, or from registered memory where the owner has them, which costs no copy. The device then
// gathers the header from here and the data from there.
//
// Three things bound what is under way: free slots at the peer, receives that the peer has posted, and room in the
// device's send queue. The last receives and the last places in the queue are kept for returning credits. The very last
// receive is only for an update that returns at least half of all receives: when two such cross, each end has receives
// again, so two ends that wait for each other's credits can always tell each other of them. An update that returns
// slots alone would give nothing for the receive that it takes.
//
// A sender that keeps (VerbsKept) has what the peer's process may lack, in case that the link goes on elsewhere. Slots
// are then in use until the peer has told that it took what they held, and sends from registered memory complete only
// then, or once they are copied into a free slot. Other sends complete as usual.
//
// Threads: as the endpoint. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "transport/continuable.h"
#include "transport/transport.h"
#include "transport/verbs/device/verbs_regions.h"
#include "transport/verbs/verbs_chain.h"
#include "transport/verbs/verbs_format.h"
#include "transport/verbs/verbs_kept.h"
#include "transport/verbs/verbs_queue_pair.h"
#include "transport/verbs/verbs_returns.h"
#include "transport/verbs/verbs_slots.h"
#include "transport/verbs/verbs_target.h"

namespace annulus {

// Local memory of the sender: slots, each with its header before it, and headers of other requests.
struct VerbsSendMemory {
  std::byte* slots = nullptr;
  std::byte* headers = nullptr;
  uint32_t key = 0;  // Its local key, once it is registered.

  static size_t Bytes(int slots, size_t slot_bytes) {
    return static_cast<size_t>(slots) * VerbsSlotStride(slot_bytes) + VerbsHeaders(slots) * kVerbsHeaderBytes;
  }
};

class VerbsSender {
 public:
  // `least_part`: smallest part of a slice that is sent before the rest is ready, in bytes. The pointers outlive it.
  VerbsSender(int slots, size_t slot_bytes, uint32_t least_part, const VerbsSendMemory& memory, VerbsRegions* regions,
              VerbsQueuePair* pair, VerbsReturns* returns, VerbsFault* fault);

  // Sets VerbsSendMemory::key.
  void SetKey(uint32_t key) { memory_.key = key; }
  // From now on it keeps; before the first send.
  void Keep() { kept_ = VerbsKept(static_cast<int>(slots_.count()), true); }

  bool keeps() const { return kept_.keeps(); }

  VerbsChain& chain() { return chain_; }
  const VerbsChain& chain() const { return chain_; }
  VerbsTarget& target() { return target_; }

  std::byte* TakeSlot() { return slots_.Lend(); }  // Null when all are lent or posted.
  // Whether Post accepts [data, data + bytes), which is no slot. Small slices are better copied.
  bool SendsFrom(const std::byte* data, size_t bytes) {
    uint32_t key = 0;
    return bytes > kVerbsShortBytes && bytes <= slots_.bytes() && regions_->Find(data, bytes, &key);
  }
  // Errors: kInvalidArgument.
  Status Post(Send* send);

  // Completes sends, frees slots, and, if it `transmits`, hands the device what is ready and has room. Returns whether
  // it completed or freed any.
  bool Advance(bool transmits);
  // Returns credits by a message of their own, if there is room for it. `half_of_receives`: at least so many are
  // returned.
  void SendUpdate(bool half_of_receives);
  // Asks for a completion of all that was handed over.
  void Flush();

  // Completes sends, in order, and frees slots. Returns whether there were any. `is_stopped`: the device reads nothing
  // any more.
  bool Complete(bool is_stopped = false);
  // Those that are being carried are no longer.
  void FailAll(Code code);

  // Whether the first send waits for nothing but the peer's word, and could be copied into a free slot instead.
  bool CanCopyLent() const;
  // Copies and completes it.
  void CopyLent();

  // The device has stopped, and the peer has received that many slices, modulo 2^32. What it lacks is carried from now
  // on, as Continuable says. Returns false when it cannot have received so many.
  bool BeginCarrying(uint32_t slices);
  bool NextToCarry(bool only_completed, CarriedSlice* slice);
  void Carried();
  bool owes_completed() const { return kept_.completed() > 0; }

  // Whether sends were posted that are not completed.
  bool has_sends() const { return queue_.first != nullptr; }
  // Whether some of them leave from their owner's memory, which the device may be reading.
  bool reads_owners_memory() const { return queue_.in_place > 0; }
  // Whether Advance would do something.
  bool HasWork() const { return CanTransmit() || CanComplete() || CanDrop(); }
  bool all_acknowledged() const { return chain_.posted() == chain_.completed(); }
  // Messages that the peer's device has acknowledged: one for each request but that of Flush, which is the last.
  uint32_t acknowledged_messages() const { return all_acknowledged() ? target_.messages() : chain_.completed(); }

 private:
  // Of a slice that is handed over in parts.
  struct Part {
    bool begun = false;
    uint32_t slot = 0;   // Its slot at the peer.
    uint32_t bytes = 0;  // What is handed over.
  };
  struct Queue {
    Send* first = nullptr;
    Send* last = nullptr;
    int in_place = 0;          // Number of sends that are in no slot.
    Send* unposted = nullptr;  // The first send that is not handed over whole.
  };

  // Receives of the peer, and places in the send queue, that slices leave free.
  static constexpr uint32_t kReserve = 3;

  bool CanTransmit() const;
  void Transmit();
  bool CanComplete() const { return queue_.first != queue_.unposted && IsDone(*queue_.first, false); }
  // Whether the first slice that is kept need not be any more.
  bool CanDrop() const;
  void DropFirst();
  bool IsDone(const Send& send, bool is_stopped) const;
  void AddShort(Send* send);
  void AddFirst(Send* send);
  void AddPart(Send* send);
  void FinishPosting(Send* send, uint32_t done_with);
  VerbsHeader HeaderOf(const Send* send, uint32_t ready);
  // Where a header lies until the next request is completed.
  std::byte* NextHeader() { return memory_.headers + chain_.posted() % num_headers_ * kVerbsHeaderBytes; }
  // Memory of the sender.
  VerbsPiece Own(const std::byte* data, size_t bytes) const { return {data, bytes, memory_.key}; }
  ibv_send_wr* AddMessage(ibv_wr_opcode opcode, VerbsImmediate immediate, const VerbsPiece& first,
                          const VerbsPiece& second = {});
  void Pop(Code code);

  const uint32_t least_part_;
  const uint32_t num_headers_;
  VerbsSendMemory memory_;
  VerbsRegions* const regions_;
  VerbsReturns* const returns_;
  VerbsFault* const fault_;
  VerbsSlots slots_;
  VerbsTarget target_;
  VerbsChain chain_;
  uint32_t sequence_ = 0;  // Number of the next slice, modulo 2^32.
  Queue queue_;
  Part part_;  // What of the first send that is not handed over whole was.
  VerbsKept kept_;
  uint32_t carried_ = 0;  // Slices that NextToCarry has told and Carried has not ended.
};

}  // namespace annulus
