// VerbsSender: the sending half of an end: lends slots, writes slices into the peer's slots, and completes sends.
//
// Three things bound what is under way: free slots at the peer, receives that the peer has posted, and room in the
// device's send queue. The last receive and the last places in the queue are kept for returning credits, so that two
// ends that wait for each other's credits can always tell each other of them.
//
// Requests go to the device as one chain per call. Only the last one of a chain asks for a completion: those before it
// are done when it is.
//
// Threads: as the endpoint. Nothing allocates after construction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transport/transport.h"
#include "transport/verbs/verbs_format.h"
#include "transport/verbs/verbs_queue_pair.h"
#include "transport/verbs/verbs_returns.h"

namespace annulus {

// Local memory of the sender: [slots, each with its header before it][headers of updates].
struct VerbsSendMemory {
  std::byte* slots = nullptr;
  std::byte* headers = nullptr;
  uint32_t key = 0;

  static size_t Bytes(int slots, size_t slot_bytes) {
    return static_cast<size_t>(slots) * VerbsSlotStride(slot_bytes) + VerbsQueueDepth(slots) * kVerbsHeaderBytes;
  }
};

class VerbsSender {
 public:
  // `least_part`: smallest part of a slice that is sent before the rest is ready, in bytes. The pointers outlive it.
  VerbsSender(int slots, size_t slot_bytes, uint32_t least_part, const VerbsSendMemory& memory, VerbsQueuePair* pair,
              VerbsReturns* returns, VerbsFault* fault);

  // Sets the local key of the memory, once it is registered.
  void SetKey(uint32_t key) { memory_.key = key; }
  // Sets where slices go.
  void Reach(const VerbsGreeting& peer);

  std::byte* TakeSlot();  // Null when all are lent or posted.
  // Errors: kInvalidArgument.
  Status Post(Send* send);

  // Hands the device what is ready and has room.
  void Transmit();
  // Returns credits by a message of their own, if there is room for it.
  void SendUpdate();
  // Asks for a completion of all that was handed over.
  void Flush();

  // The device has completed the requests up to `value`.
  void TakeCompletion(uint32_t value);
  // The device has failed or flushed the request `value`, and so all before it are settled.
  void TakeFailure(uint32_t value) { settled_ += (value - settled_) & VerbsHub::kMostValue; }
  // Whether the device has nothing more to say of any request.
  bool settled() const { return settled_ == posted_ || completed_ == posted_; }
  // The peer's header returns credits.
  void TakeCredits(const VerbsHeader& header);
  // The peer has left; it had received so many messages, and what belongs to them is done whether it was acknowledged
  // or not.
  void TakeFarewell(uint32_t received);

  // Completes sends, in order. Returns whether there were any.
  bool Complete();
  void FailAll(Code code);

  bool idle() const { return first_ == nullptr; }
  // Whether Transmit or Complete would do something.
  bool HasWork() const { return CanTransmit() || (first_ != unposted_ && IsDone(*first_)); }
  bool all_acknowledged() const { return posted_ == completed_; }
  // Messages that the peer's device has acknowledged.
  uint32_t acknowledged_messages() const { return all_acknowledged() ? messages_ : completed_; }

 private:
  static constexpr int kMostChain = 16;
  // Receives of the peer, and places in the send queue, that slices leave free.
  static constexpr uint32_t kReserve = 2;

  uint32_t Credits() const { return depth_ - (messages_ - peer_taken_); }
  uint32_t Room() const { return depth_ - (posted_ - completed_); }
  std::byte* SlotAt(size_t index) const { return memory_.slots + index * stride_ + kVerbsHeaderBytes; }
  bool IsShort(const Send& send) const { return send.bytes <= kVerbsShortBytes; }
  bool CanTransmit() const;
  bool IsDone(const Send& send) const;

  void AddShort(Send* send);
  void AddFirst(Send* send);
  void AddPart(Send* send);
  void FinishPosting(Send* send, uint32_t done_with);
  VerbsHeader HeaderOf(const Send* send, uint32_t ready);
  ibv_send_wr* AddRequest(ibv_wr_opcode opcode, const std::byte* data, size_t bytes, VerbsImmediate immediate);
  void PostChain(bool signal);
  void Pop(Code code);

  const int slots_;
  const size_t slot_bytes_;
  const size_t stride_;
  const uint32_t least_part_;
  const uint32_t depth_;
  VerbsSendMemory memory_;
  VerbsQueuePair* const pair_;
  VerbsReturns* const returns_;
  VerbsFault* const fault_;

  uint64_t peer_address_ = 0;
  uint32_t peer_key_ = 0;
  uint64_t at_peer_ = 0;        // Slots of the peer that are in use, one bit each.
  uint64_t peer_released_ = 0;  // The last VerbsHeader::released.
  uint32_t peer_taken_ = 0;     // The last VerbsHeader::taken.
  uint32_t peer_received_ = 0;  // From the farewell.
  bool has_farewell_ = false;

  // Counters modulo 2^32.
  uint32_t posted_ = 0;      // Requests that the device got.
  uint32_t completed_ = 0;   // Requests that it has completed.
  uint32_t settled_ = 0;     // Requests that it has failed or flushed, or that came before one of these.
  uint32_t messages_ = 0;    // Messages to the peer, one for each request but that of Flush.
  uint32_t sequence_ = 0;    // Slices.
  uint32_t unsignaled_ = 0;  // Requests since the last one that asked for a completion.

  std::vector<uint32_t> free_;
  std::vector<bool> lent_;  // By slot: lent, not posted.
  Send* first_ = nullptr;
  Send* last_ = nullptr;
  Send* unposted_ = nullptr;  // The first send that is not handed over whole.
  bool begun_ = false;        // A part of it is.
  uint32_t part_slot_ = 0;    // Its slot at the peer.
  uint32_t part_bytes_ = 0;   // What of it is handed over.

  std::array<ibv_send_wr, kMostChain> chain_;
  std::array<ibv_sge, kMostChain> pieces_;
  int chained_ = 0;
  bool chain_waits_ = false;  // A send of the chain is done only when the device has completed it.
};

}  // namespace annulus
