#include "transport/shm/shm_sender.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace annulus {
ShmSender::ShmSender(const ShmDirection& shared, ShmOwnRegions* regions, ShmOwnDevices* devices)
    : shared_(shared),
      in_place_{regions, devices},
      free_{std::vector<uint32_t>(shared.num_slots)},
      slots_(shared.num_slots) {
  for (uint32_t slot = 0; slot < shared.num_slots; ++slot) Free(slot);
}

std::byte* ShmSender::Acquire(size_t bytes, ShmPlacing placing, ShmFault* fault) {
  CollectIfFew(fault);
  return LendFree(bytes, placing, fault);
}

std::byte* ShmSender::LendFree(size_t bytes, ShmPlacing placing, ShmFault* fault) {
  if (fault->field != nullptr || free_.number == 0) return nullptr;
  const uint32_t index = TakeFree();
  Slot& slot = slots_[index];
  slot.state = State::kLent;
  const uint32_t begin = NextBegin(index, bytes, placing);
  if (begin != slot.begin) slot.read_bytes = 0;  // Of what is there, that is not known.
  slot.begin = begin;
  return SliceAt(index);
}

uint32_t ShmSender::NextBegin(uint32_t slot, size_t bytes, ShmPlacing placing) const {
  if (bytes < kLeastInTurn) {
    // Slots lie a power of two apart, where a cache has places for few lines.
    const size_t begin = slot * kLeastInTurn;
    return begin + kLeastInTurn <= shared_.slot_bytes ? static_cast<uint32_t>(begin) : 0;
  }
  if (placing == ShmPlacing::kAtBeginning) return 0;
  const size_t begin = (slots_[slot].end + kShmBeginStep - 1) / kShmBeginStep * kShmBeginStep;
  const size_t room = std::min(shared_.slot_bytes, turn_bytes_);
  return begin <= room && bytes <= room - begin ? static_cast<uint32_t>(begin) : 0;
}

Nanoseconds ShmSender::TimeReturn() {
  if (timed_return_ == next_return_) return 0;
  const Nanoseconds begin = Now();
  const uint64_t word =
      shared_.returns[(next_return_ - 1) & (shared_.return_entries - 1)].load(std::memory_order_acquire);
  const Nanoseconds took = Now() - begin;
  if (static_cast<uint32_t>(word >> 32) != static_cast<uint32_t>(next_return_)) return 0;
  timed_return_ = next_return_;
  return std::max<Nanoseconds>(took, 1);
}

Nanoseconds ShmSender::TimeRewrite(std::byte* slot, size_t bytes) {
  if (slots_[IndexOf(slot)].read_bytes < bytes) return 0;
  const Nanoseconds begin = Now();
  for (size_t offset = 0; offset < bytes; offset += kLineBytes) {
    *reinterpret_cast<volatile uint64_t*>(slot + offset) = 0;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // Waits until the lines are here.
  return std::max<Nanoseconds>(Now() - begin, 1);
}

bool ShmSender::CollectReturns(ShmFault* fault) {
  bool took = false;
  // The loop ends: at most all slots are at the peer, and the return of any other slot is a fault.
  while (true) {
    const uint64_t word =
        shared_.returns[(next_return_ - 1) & (shared_.return_entries - 1)].load(std::memory_order_acquire);
    if (static_cast<uint32_t>(word >> 32) != static_cast<uint32_t>(next_return_)) return took;
    const uint32_t slot = static_cast<uint32_t>(word);
    const State state = slot < shared_.num_slots ? slots_[slot].state : State::kFree;
    if (state != State::kAtPeer && state != State::kInPlace && state != State::kLoan) {
      *fault = {"returned slot", slot, shared_.num_slots};
      return took;
    }
    ++next_return_;
    if (state != State::kAtPeer) {
      slots_[slot].state = State::kInPlaceRead;
    } else {
      Free(slot);
    }
    took = true;
  }
}

void ShmSender::Free(uint32_t slot) {
  slots_[slot].state = State::kFree;
  free_.ring[(free_.first + free_.number++) % free_.ring.size()] = slot;
}

void ShmSender::FreeAtHome(uint32_t slot) {
  slots_[slot].state = State::kFree;
  slots_[slot].read_bytes = 0;
  free_.first = (free_.first + free_.ring.size() - 1) % free_.ring.size();
  free_.ring[free_.first] = slot;
  ++free_.number;
}

uint32_t ShmSender::TakeFree() {
  const uint32_t slot = free_.ring[free_.first];
  free_.first = (free_.first + 1) % free_.ring.size();
  --free_.number;
  return slot;
}

bool ShmSender::OwnsAsLent(const std::byte* data) const {
  const size_t offset = static_cast<size_t>(data - shared_.slots);
  const size_t slot = offset / shared_.slot_stride;
  return data >= shared_.slots && slot < shared_.num_slots && offset % shared_.slot_stride == slots_[slot].begin &&
         slots_[slot].state == State::kLent;
}

// Sets the cookie to the slot that the slice takes to the peer.
Status ShmSender::AssignSlot(Send* send, ShmFault* fault) {
  if (OwnsAsLent(send->data)) {
    const size_t slot = IndexOf(send->data);
    if (send->bytes > shared_.slot_bytes - slots_[slot].begin)
      return Status::Invalid("a slice of " + std::to_string(send->bytes) + " bytes, where its slot has room for " +
                             std::to_string(shared_.slot_bytes - slots_[slot].begin));
    slots_[slot].state = State::kPosted;
    send->cookie = kTied | slot;
    return Status();
  }
  ShmPlace place;
  // Also if it could lie in place by now: such a send would wait for its receive.
  const bool is_lent = loan_.next != nullptr && send->data == loan_.next && send->bytes == loan_.next_bytes;
  const bool in_place = !is_lent && FindPlace(send->data, send->bytes, &place);
  if (!in_place && !is_lent)
    return Status::Invalid("shared memory sends only slots that AcquireSlot lent, and memory that the peer can read");
  CollectReturns(fault);
  if (free_.number == 0) return Status::WouldBlock();
  const uint32_t slot = TakeFree();
  slots_[slot].state = in_place ? State::kInPlace : State::kLoan;
  slots_[slot].place = place;
  slots_[slot].begin = slots_[slot].end = 0;
  if (is_lent) loan_.next = nullptr;
  loan_.is_latest = is_lent;
  expected_.bytes = 0;
  if (!in_place) shared_.claims[slot].state.store(ShmClaimState::kOffered, std::memory_order_relaxed);
  send->cookie = kTied | slot;
  return Status();
}

Status ShmSender::Post(Send* send, ShmFault* fault) {
  if (send->bytes > shared_.slot_bytes || send->ready > send->bytes) {
    return Status::Invalid("a slice of " + std::to_string(send->bytes) + " bytes, " + std::to_string(send->ready) +
                           " of them ready, for a slot of " + std::to_string(shared_.slot_bytes) + " bytes");
  }
  ANNULUS_RETURN_IF_ERROR(AssignSlot(send, fault));
  send->code = Code::kInProgress;
  send->next = nullptr;
  if (first_ == nullptr) loan_.is_late = false;
  (first_ == nullptr ? first_ : last_->next) = send;
  last_ = send;
  if (unpublished_ == nullptr) unpublished_ = send;
  return Status();
}

bool ShmSender::PublishInSlot(const Tag& tag, const std::byte* data, uint32_t bytes, ShmFault* fault) {
  CollectIfFew(fault);
  std::byte* const slot = LendFree(bytes, ShmPlacing::kAtBeginning, fault);
  if (slot == nullptr) return false;
  std::memcpy(slot, data, bytes);
  PublishLent(tag, slot, bytes);
  ExpectMore(bytes, ShmPlacing::kAtBeginning);
  return true;
}

void ShmSender::PublishLent(const Tag& tag, const std::byte* slot, uint32_t bytes) {
  const uint32_t index = static_cast<uint32_t>(IndexOf(slot));
  Hand(index, bytes);
  Announce(tag, index, bytes);
}

bool ShmSender::Publish(ShmFault* fault) {
  bool any = false;
  while (unpublished_ != nullptr && unpublished_->ready == unpublished_->bytes && HasRoom(fault)) {
    PublishOne(unpublished_);
    unpublished_ = unpublished_->next;
    any = true;
  }
  return any;
}

void ShmSender::PublishOne(Send* send) {
  uint32_t word = static_cast<uint32_t>(send->cookie);
  Slot& slot = slots_[word];
  if (slot.state == State::kInPlace) {
    std::memcpy(NextDescriptor().payload, &slot.place, sizeof(slot.place));
    word |= kShmInPlace;
  } else if (slot.state == State::kLoan || slot.state == State::kWithdrawn) {
    const uint64_t address = reinterpret_cast<uintptr_t>(send->data);
    std::memcpy(NextDescriptor().payload, &address, sizeof(address));
    word |= kShmLent;
  } else if (send->bytes <= ShmDescriptor::kPayloadBytes) {
    std::memcpy(NextDescriptor().payload, send->data, send->bytes);
    word = kShmInline;
  } else {
    Hand(word, send->bytes);
    send->cookie = 0;
  }
  Announce(send->tag, word, send->bytes);
}

bool ShmSender::Complete(bool* copied, ShmFault* fault) {
  bool any = false;
  size_t seen_bytes = 0;  // Of loans: they may have been copied here.
  while (first_ != unpublished_ && seen_bytes < kMostLentBytesAtOnce) {
    if (IsLoan(*first_)) seen_bytes += first_->bytes;
    const bool is_over = IsRead(*first_) ||
                         (IsLoan(*first_) ? EndsLoan(first_, copied, fault) : CollectReturns(fault) && IsRead(*first_));
    if (!is_over) return any;
    Pop(Code::kOk);
    any = true;
  }
  return any;
}

bool ShmSender::EndsLoan(Send* send, bool* copied, ShmFault* fault) {
  const Nanoseconds now = Now();
  const bool is_new = std::exchange(loan_.awaited, send) != send;
  if (is_new) loan_.since = now;
  if (!is_new && now < loan_.look_at) return false;
  loan_.look_at = 0;
  const uint32_t slot = static_cast<uint32_t>(send->cookie);
  ShmClaim& claim = shared_.claims[slot];
  ShmClaimState state = claim.state.load(std::memory_order_acquire);
  if (state == ShmClaimState::kReading) {
    loan_.look_at = now + PauseWhileRead(send->bytes);
    return false;
  }
  bool copies = false;
  if (state == ShmClaimState::kOffered) {
    const bool waits = !loan_.is_late && now - loan_.since < LoanPatience(send->bytes);
    if (waits || !claim.Move(state, ShmClaimState::kCopying)) return false;
    std::memcpy(SlotAt(slot), send->data, send->bytes);
    state = ShmClaimState::kCopied;
    claim.state.store(state, std::memory_order_release);
    copies = *copied = true;
  }
  if (state != ShmClaimState::kRead && !copies) {
    *fault = {"claim", static_cast<uint64_t>(state), static_cast<uint64_t>(ShmClaimState::kRead)};
    return false;
  }
  loan_.is_late = copies;
  slots_[slot].state = State::kAtPeer;
  slots_[slot].read_bytes = copies ? send->bytes : 0;
  send->cookie = 0;
  return true;
}

void ShmSender::Pop(Code code) {
  Send* const send = first_;
  const uint32_t slot = static_cast<uint32_t>(send->cookie);
  const bool tied = (send->cookie & kTied) != 0;
  loan_.awaited = nullptr;
  first_ = send->next;
  // On failure the peer may still be reading data in place.
  if (tied && IsRead(*send)) FreeAtHome(slot);
  send->code = code;  // Last: the request may be gone from here on.
}

void ShmSender::Withdraw() {
  for (Send* send = first_; send != nullptr; send = send->next) {
    if (!IsLoan(*send)) continue;
    const uint32_t slot = static_cast<uint32_t>(send->cookie);
    // What the peer reads from here on it will not use.
    const bool was_read = shared_.claims[slot].state.exchange(ShmClaimState::kWithdrawn) == ShmClaimState::kRead;
    slots_[slot].state = was_read ? State::kAtPeer : State::kWithdrawn;
    if (was_read) send->cookie = 0;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // Before the memory changes.
}

void ShmSender::FailAll(Code code) {
  Withdraw();
  while (first_ != nullptr) Pop(code);
  unpublished_ = nullptr;
  known_consumed_ = published() + 1;
}

}  // namespace annulus
