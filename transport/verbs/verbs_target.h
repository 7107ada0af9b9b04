// VerbsTarget: the peer as the sender sees it: where its slots are, which of them are free, how many messages it can
// take, and how many it had received when it left.
//
// Threads: as the endpoint.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "transport/verbs/device/verbs_api.h"
#include "transport/verbs/verbs_format.h"
#include "transport/verbs/verbs_returns.h"

namespace annulus {

class VerbsTarget {
 public:
  // `fault` outlives it.
  VerbsTarget(int slots, size_t slot_bytes, VerbsFault* fault)
      : all_slots_(slots == 64 ? ~uint64_t{0} : (uint64_t{1} << slots) - 1),
        stride_(VerbsSlotStride(slot_bytes)),
        depth_(VerbsQueueDepth(slots)),
        fault_(fault) {}

  void Reach(const VerbsGreeting& peer) {
    address_ = peer.address;
    key_ = peer.key;
  }
  // Lets a request write at `offset`, counted from the header of the slot.
  void Aim(uint32_t slot, size_t offset, ibv_send_wr* request) const {
    request->wr.rdma.remote_addr = address_ + slot * stride_ + offset;
    request->wr.rdma.rkey = key_;
  }

  // Messages that the peer can take.
  uint32_t Credits() const { return depth_ - (messages_ - taken_); }
  // Whether the first `number` messages are known to have reached the peer's process: it has taken as many, whichever
  // they were, or released the slot that one of them, or a later one, was for. Messages arrive in order.
  bool HasReached(uint32_t number) const { return VerbsReached(reached_, number); }
  void CountMessage() { ++messages_; }
  // Messages that were sent, modulo 2^32.
  uint32_t messages() const { return messages_; }

  bool HasSlot() const { return (~used_ & all_slots_) != 0; }
  uint32_t TakeSlot() {
    const auto slot = static_cast<uint32_t>(std::countr_zero(~used_ & all_slots_));
    used_ |= uint64_t{1} << slot;
    return slot;
  }

  // The slice in that slot has been sent whole.
  void EndSlice(uint32_t slot) { ends_[slot] = messages_; }

  // The peer's header returns slots and receives.
  void TakeCredits(const VerbsHeader& header) {
    const uint64_t changed = header.released ^ released_;
    if ((changed & ~used_) != 0) return fault_->Set("a released slot that it does not have", changed);
    if (header.taken - taken_ > messages_ - taken_) return fault_->Set("a count of taken messages", header.taken);
    used_ &= ~changed;
    released_ = header.released;
    taken_ = header.taken;
    Reach(taken_);
    for (uint64_t left = changed; left != 0; left &= left - 1) Reach(ends_[std::countr_zero(left)]);
  }

  // The peer has left after `received` messages, modulo 2^32.
  void TakeFarewell(uint32_t received) {
    has_farewell_ = true;
    received_ = received;
  }
  // Whether the peer's farewell counts message `number` as received.
  bool HasReceived(uint32_t number) const { return has_farewell_ && VerbsReached(received_, number); }

 private:
  void Reach(uint32_t message) {
    if (VerbsReached(message, reached_)) reached_ = message;
  }

  const uint64_t all_slots_;  // A bit for each, as in the other words.
  const size_t stride_;
  const uint32_t depth_;
  VerbsFault* const fault_;
  uint64_t address_ = 0;  // Address of the first slot's header.
  uint32_t key_ = 0;
  uint64_t used_ = 0;      // Slots that hold a slice.
  uint64_t released_ = 0;  // The last VerbsHeader::released.
  uint32_t taken_ = 0;     // The last VerbsHeader::taken.
  uint32_t messages_ = 0;
  uint32_t reached_ = 0;                          // As in HasReached.
  std::array<uint32_t, kMostVerbsSlots> ends_{};  // By slot: number of messages up to the last slice in it.
  uint32_t received_ = 0;
  bool has_farewell_ = false;
};

}  // namespace annulus
