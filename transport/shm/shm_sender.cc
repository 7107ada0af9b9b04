#include "transport/shm/shm_sender.h"

#include <cstring>
#include <string>

namespace annulus {

ShmSender::ShmSender(const ShmDirection& shared) : shared_(shared), places_(shared.num_slots, Place::kFree) {
  free_.reserve(shared.num_slots);
  for (uint32_t slot = shared.num_slots; slot > 0; --slot) free_.push_back(slot - 1);
}

std::byte* ShmSender::Acquire(ShmFault* fault) {
  TakeReturns(fault);
  if (fault->field != nullptr || free_.empty()) return nullptr;
  const uint32_t slot = free_.back();
  free_.pop_back();
  places_[slot] = Place::kLent;
  return shared_.slots + slot * shared_.slot_stride;
}

bool ShmSender::TakeReturns(ShmFault* fault) {
  bool took = false;
  // Ends: no more than all slots are away, and one that is not away is a fault.
  while (true) {
    const uint64_t word =
        shared_.returns[(next_return_ - 1) & (shared_.return_entries - 1)].load(std::memory_order_acquire);
    if (static_cast<uint32_t>(word >> 32) != static_cast<uint32_t>(next_return_)) return took;
    const uint32_t slot = static_cast<uint32_t>(word);
    if (slot >= shared_.num_slots || places_[slot] != Place::kAtPeer) {
      *fault = {"returned slot", slot, shared_.num_slots};
      return took;
    }
    ++next_return_;
    Free(slot);
    took = true;
  }
}

void ShmSender::Free(uint32_t slot) {
  places_[slot] = Place::kFree;
  free_.push_back(slot);
}

Status ShmSender::Post(Send* send) {
  const size_t offset = static_cast<size_t>(send->data - shared_.slots);
  const size_t slot = offset / shared_.slot_stride;
  if (send->data < shared_.slots || slot >= shared_.num_slots || offset % shared_.slot_stride != 0 ||
      places_[slot] != Place::kLent) {
    return Status::Invalid("shared memory sends only slots that AcquireSlot lent");
  }
  if (send->bytes > shared_.slot_bytes || send->ready > send->bytes) {
    return Status::Invalid("a slice of " + std::to_string(send->bytes) + " bytes, " + std::to_string(send->ready) +
                           " of them ready, for a slot of " + std::to_string(shared_.slot_bytes) + " bytes");
  }
  send->code = Code::kInProgress;
  send->next = nullptr;
  send->cookie = slot;
  places_[slot] = Place::kPosted;
  (first_ == nullptr ? first_ : last_->next) = send;
  last_ = send;
  if (unpublished_ == nullptr) unpublished_ = send;
  return Status();
}

bool ShmSender::Publish(ShmFault* fault) {
  bool any = false;
  while (unpublished_ != nullptr && unpublished_->ready == unpublished_->bytes && HasRoom(fault)) {
    PublishOne(*unpublished_);
    unpublished_ = unpublished_->next;
    any = true;
  }
  return any;
}

void ShmSender::PublishOne(const Send& send) {
  ShmDescriptor& descriptor = shared_.ring[(next_ticket_ - 1) & (shared_.ring_entries - 1)];
  const bool is_inline = send.bytes <= ShmDescriptor::kPayloadBytes;
  const uint32_t slot = static_cast<uint32_t>(send.cookie);
  if (is_inline) {
    std::memcpy(descriptor.payload, send.data, send.bytes);
  } else {
    places_[slot] = Place::kAtPeer;
  }
  std::memcpy(descriptor.tag, send.tag.words.data(), sizeof(descriptor.tag));
  descriptor.slot.store(is_inline ? kShmInline : slot, std::memory_order_relaxed);
  descriptor.bytes.store(send.bytes, std::memory_order_relaxed);
  // Releases the slot's content and the descriptor's; the receiver acquires it.
  descriptor.ticket.store(next_ticket_++, std::memory_order_release);
}

bool ShmSender::Complete() {
  bool any = false;
  while (first_ != unpublished_) {
    Pop(Code::kOk);
    any = true;
  }
  return any;
}

void ShmSender::Pop(Code code) {
  Send* const send = first_;
  const uint32_t slot = static_cast<uint32_t>(send->cookie);
  first_ = send->next;
  if (places_[slot] == Place::kPosted) Free(slot);
  send->code = code;  // Last: the request may be gone from here on.
}

void ShmSender::FailAll(Code code) {
  while (first_ != nullptr) Pop(code);
  unpublished_ = nullptr;
}

}  // namespace annulus
