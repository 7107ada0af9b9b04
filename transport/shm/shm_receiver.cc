#include "transport/shm/shm_receiver.h"

#include <errno.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace annulus {
namespace {

// What is added to a slot's index.
constexpr uint32_t kForms = kShmInPlace | kShmLent;

// Most of a short slice that is fetched as soon as it is seen, in bytes. Processors find the rest by themselves.
constexpr size_t kMostFetched = 1024;
constexpr size_t kLineBytes = 64;

void Fetch(const std::byte* data, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(data + at);
}

// Whether only the sender can change the state of a claim whose slice has not arrived.
bool IsSenders(ShmClaimState state) {
  return state == ShmClaimState::kOffered || state == ShmClaimState::kCopying || state == ShmClaimState::kWithdrawn;
}

}  // namespace

ShmReceiver::ShmReceiver(const ShmDirection& shared, ShmPeerRegions* regions, std::function<bool()> read_notices,
                         ShmPeerMemory* memory, SlotMemory* cell_memory, ShmPeerDevices* devices)
    : shared_(shared),
      regions_(regions),
      read_notices_(std::move(read_notices)),
      memory_(memory),
      devices_{devices},
      cell_block_(cell_memory, shared.num_slots * sizeof(Cell)),
      cells_(reinterpret_cast<Cell*>(cell_block_.data())),
      slots_{std::vector<bool>(shared.num_slots), std::vector<uint32_t>(shared.num_slots),
             std::vector<uint64_t>(shared.num_slots)} {
  free_cells_.reserve(shared.num_slots);
  for (uint32_t cell = shared.num_slots; cell > 0; --cell) free_cells_.push_back(cell - 1);
}

bool ShmReceiver::Post(Recv* recv) {
  if (in_use_ == shared_.num_slots) return false;
  ++in_use_;
  recv->code = Code::kInProgress;
  recv->started = false;
  recv->arrived = 0;
  recv->data = nullptr;
  recv->read_only = false;
  recv->on_device = false;
  recv->next = nullptr;
  if (devices_.all != nullptr) devices_.all->NoteReader(recv->reader);
  (first_ == nullptr ? first_ : last_->next) = recv;
  last_ = recv;
  return true;
}

bool ShmReceiver::Advance(bool* freed, ShmFault* fault) {
  bool any = false;
  while (first_ != nullptr && HasSlice() && ReceiveNext(freed, fault)) {
    Consume(freed);
    any = true;
  }
  return any;
}

bool ShmReceiver::PeekShort(ShortPath::Slice* slice, ShmFault* fault) {
  if (!HasSlice() || first_ != nullptr) return false;
  const ShmDescriptor& descriptor = Next();
  const uint32_t word = descriptor.slot.load(std::memory_order_relaxed);
  slice->bytes = descriptor.bytes.load(std::memory_order_relaxed);
  const bool is_inline = word == kShmInline;
  peeked_.word = word;
  peeked_.bytes = slice->bytes;
  if (Ticket() != taken_ + 1) {
    *fault = {"ticket", Ticket(), taken_ + 1};
  } else if (slice->bytes > (is_inline ? ShmDescriptor::kPayloadBytes : shared_.slot_bytes)) {
    *fault = {"bytes", slice->bytes, is_inline ? ShmDescriptor::kPayloadBytes : shared_.slot_bytes};
  } else if (!is_inline &&
             ((word & ~kForms) >= shared_.num_slots || slots_.held[word & ~kForms] || (word & kForms) == kForms)) {
    *fault = {"slot", word, shared_.num_slots};
  }
  if (fault->field != nullptr) return false;
  std::memcpy(slice->tag.words.data(), descriptor.tag, sizeof(descriptor.tag));
  slice->data = nullptr;
  if (is_inline) {
    slice->data = descriptor.payload;
  } else if (word < shared_.num_slots) {
    ShmBegin begin = 0;
    if (!FindBegin(descriptor, slice->bytes, &begin, fault)) return false;
    slice->data = shared_.slots + word * shared_.slot_stride + begin;
    // The lines come while it is looked up what the slice is.
    Fetch(slice->data, std::min<size_t>(slice->bytes, kMostFetched));
    if (memory_ != nullptr) memory_->BeginSlot(slice->bytes);
  }
  return true;
}

void ShmReceiver::PopShort(bool* told) {
  Consume(told);
  if (peeked_.word == kShmInline) return;
  if (memory_ != nullptr) memory_->EndSlot(peeked_.bytes);
  ReturnSlot(peeked_.word);
  *told = true;
}

bool ShmReceiver::PopLent(std::byte* to, bool* told) {
  const uint32_t slot = peeked_.word & ~kForms;
  if ((peeked_.word & kForms) != kShmLent) return false;
  if (!CopyLent(slot, to, peeked_.bytes, told)) {
    if (shared_.claims[slot].state.load(std::memory_order_acquire) != ShmClaimState::kCopied) return false;
    std::memcpy(to, shared_.slots + slot * shared_.slot_stride, peeked_.bytes);
  }
  Consume(told);
  ReturnSlot(slot);
  *told = true;
  return true;
}

bool ShmReceiver::AwaitsLoan() const {
  const uint32_t word = Next().slot.load(std::memory_order_relaxed);
  const uint32_t slot = word & ~kForms;
  if ((word & kForms) != kShmLent || slot >= shared_.num_slots) return false;
  const ShmClaimState state = shared_.claims[slot].state.load(std::memory_order_acquire);
  return state == ShmClaimState::kOffered ? !CanRead() : IsSenders(state);
}

bool ShmReceiver::ReceiveNext(bool* freed, ShmFault* fault) {
  const ShmDescriptor& descriptor = Next();
  const uint64_t ticket = Ticket();
  if (ticket != taken_ + 1) {
    *fault = {"ticket", ticket, taken_ + 1};
    return false;
  }
  Recv* const recv = first_;
  const uint32_t word = descriptor.slot.load(std::memory_order_relaxed);
  const uint32_t bytes = descriptor.bytes.load(std::memory_order_relaxed);
  const uint32_t slot = word == kShmInline ? word : word & ~kForms;
  if (slot != kShmInline && (slot >= shared_.num_slots || slots_.held[slot] || (word & kForms) == kForms)) {
    *fault = {"slot", word, shared_.num_slots};
    return false;
  }
  const uint64_t most = slot == kShmInline ? ShmDescriptor::kPayloadBytes : shared_.slot_bytes;
  if (bytes > most) {
    *fault = {"bytes", bytes, most};
    return false;
  }
  std::memcpy(recv->tag.words.data(), descriptor.tag, sizeof(descriptor.tag));
  recv->bytes = bytes;
  recv->started = true;
  if (bytes > recv->capacity) {
    *fault = {"bytes against the receive's capacity", bytes, recv->capacity};
    return false;
  }
  if (word == slot) {
    ShmBegin begin = 0;
    if (slot != kShmInline && !FindBegin(descriptor, bytes, &begin, fault)) return false;
    Fill(recv, descriptor, slot, begin);
  } else if ((word & kShmLent) != 0) {
    recv->started = FillLent(recv, descriptor, slot, freed, fault);
    if (!recv->started) return false;
  } else if (!FillInPlace(recv, descriptor, slot, fault)) {
    recv->started = false;
    return false;
  }
  Pop(Code::kOk);
  return true;
}

bool ShmReceiver::ClaimAhead(size_t ahead, const Recv& recv, uint32_t* slot, ShmPeerMemory::Part* part) {
  const ShmDescriptor& descriptor = shared_.ring[(taken_ + ahead) & (shared_.ring_entries - 1)];
  if (descriptor.ticket.load(std::memory_order_acquire) != taken_ + ahead + 1) return false;
  const uint32_t word = descriptor.slot.load(std::memory_order_relaxed);
  part->bytes = descriptor.bytes.load(std::memory_order_relaxed);
  *slot = word & ~kForms;
  // What is wrong is found when it is taken.
  if ((word & kForms) != kShmLent || *slot >= shared_.num_slots || slots_.held[*slot] || slots_.read_ahead[*slot] > 0)
    return false;
  if (part->bytes > shared_.slot_bytes || part->bytes > recv.capacity) return false;
  std::memcpy(&part->address, descriptor.payload, sizeof(part->address));
  part->to = PlaceOf(recv, *slot);
  return shared_.claims[*slot].Move(ShmClaimState::kOffered, ShmClaimState::kReading);
}

bool ShmReceiver::CopyLent(uint32_t slot, std::byte* to, uint32_t bytes, bool* told) {
  if (!CanRead() || !shared_.claims[slot].Move(ShmClaimState::kOffered, ShmClaimState::kReading)) return false;
  std::array<ShmPeerMemory::Part, ShmPeerMemory::kMostParts> parts;
  std::array<uint32_t, ShmPeerMemory::kMostParts> slots;
  parts[0] = {to, 0, bytes};
  slots[0] = slot;
  std::memcpy(&parts[0].address, Next().payload, sizeof(parts[0].address));
  size_t number = 1;
  const Recv* recv = first_ != nullptr ? first_->next : nullptr;
  size_t all_bytes = bytes;
  while (number < parts.size() && recv != nullptr && all_bytes < kMostLentBytesAtOnce &&
         ClaimAhead(number, *recv, &slots[number], &parts[number])) {
    all_bytes += parts[number].bytes;
    ++number;
    recv = recv->next;
  }
  const bool is_read = memory_->Read({parts.data(), number});
  *told = true;
  for (size_t i = 0; i < number; ++i) {
    // The sender may have withdrawn it: then this may be what its user wrote afterwards.
    const ShmClaimState state = is_read ? ShmClaimState::kRead : ShmClaimState::kOffered;
    const bool is_here = shared_.claims[slots[i]].Move(ShmClaimState::kReading, state) && is_read;
    slots_.read_ahead[slots[i]] = is_here ? static_cast<uint32_t>(parts[i].bytes) : 0;
  }
  return std::exchange(slots_.read_ahead[slot], 0) > 0;
}

bool ShmReceiver::FillLent(Recv* recv, const ShmDescriptor& descriptor, uint32_t slot, bool* freed, ShmFault* fault) {
  const uint32_t read_bytes = std::exchange(slots_.read_ahead[slot], 0);
  if (read_bytes > 0 && read_bytes != recv->bytes) {  // The peer has changed its mind.
    *fault = {"bytes", recv->bytes, read_bytes};
    return false;
  }
  const bool is_read = read_bytes > 0 || CopyLent(slot, PlaceOf(*recv, slot), recv->bytes, freed);
  const ShmClaimState state =
      is_read ? ShmClaimState::kCopied : shared_.claims[slot].state.load(std::memory_order_acquire);
  if (state != ShmClaimState::kCopied) {
    if (!IsSenders(state)) *fault = {"claim", static_cast<uint64_t>(state), 0};
    return false;
  }
  if (!is_read || recv->landing == nullptr) {
    Fill(recv, descriptor, slot, 0);
    return true;
  }
  recv->arrived = recv->bytes;
  recv->data = recv->landing;
  --in_use_;
  ReturnSlot(slot);
  *freed = true;
  return true;
}

bool ShmReceiver::FillInPlace(Recv* recv, const ShmDescriptor& descriptor, uint32_t slot, ShmFault* fault) {
  ShmPlace place;
  std::memcpy(&place, descriptor.payload, sizeof(place));
  if (devices_.is_copying) return FillCopied(recv, slot, fault);
  if ((place.region & kShmOnDevice) != 0) return FillOnDevice(recv, place, slot, fault);
  const std::byte* data = regions_->Hold(place, recv->bytes);
  // The notice was sent before the descriptor, but many other notices may precede it.
  for (bool more = true; data == nullptr && more;) {
    more = read_notices_();
    data = regions_->Hold(place, recv->bytes);
  }
  if (data == nullptr) {
    // A fault found in the notices explains more.
    if (fault->field == nullptr) *fault = {"place in registered memory", place.region, place.offset};
    return false;
  }
  slots_.held[slot] = true;
  slots_.regions_held[slot] = place.region;
  recv->cookie = kInPlace | slot;
  recv->data = const_cast<std::byte*>(data);  // The memory is mapped for reading only.
  recv->read_only = true;
  recv->arrived = recv->bytes;
  return true;
}

// The peer has read this end's answer, which came after the region was opened here.
bool ShmReceiver::FillOnDevice(Recv* recv, const ShmPlace& place, uint32_t slot, ShmFault* fault) {
  const std::byte* const data = devices_.all != nullptr ? devices_.all->Hold(place, recv->bytes) : nullptr;
  if (data == nullptr) {
    *fault = {"place in a device's memory", place.region, place.offset};
    return false;
  }
  slots_.regions_held[slot] = place.region;
  if (recv->reader == nullptr || !devices_.all->IsRead(place.region, recv->reader)) {
    const Status begun = devices_.all->BeginCopy(place.region, data, recv->bytes, PlaceOf(Recv(), slot));
    if (!begun.ok()) *fault = {"copying a slice in a device's memory", place.region, place.offset, EIO};
    devices_.is_copying = begun.ok();
    devices_.slot = slot;
    devices_.bytes = recv->bytes;
    return false;
  }
  slots_.held[slot] = true;
  recv->cookie = kInPlace | slot;
  recv->data = const_cast<std::byte*>(data);  // Nobody writes to what is read_only.
  recv->read_only = recv->on_device = true;
  recv->arrived = recv->bytes;
  return true;
}

bool ShmReceiver::FillCopied(Recv* recv, uint32_t slot, ShmFault* fault) {
  if (slot != devices_.slot || recv->bytes != devices_.bytes) {  // The peer has changed its mind.
    *fault = {"slot of a slice that is being copied", slot, devices_.slot};
    return false;
  }
  const Status copied = devices_.all->CheckCopy();
  if (copied.would_block()) return false;
  devices_.is_copying = false;
  if (!copied.ok()) {
    *fault = {"copying a slice in a device's memory", slots_.regions_held[slot], recv->bytes, EIO};
    return false;
  }
  slots_.held[slot] = true;
  recv->cookie = kInPlace | slot;
  recv->data = PlaceOf(Recv(), slot);
  recv->read_only = true;  // The peer may have given up meanwhile.
  recv->arrived = recv->bytes;
  return true;
}

bool ShmReceiver::FindBegin(const ShmDescriptor& descriptor, uint32_t bytes, ShmBegin* begin, ShmFault* fault) const {
  std::memcpy(begin, descriptor.payload, sizeof(*begin));
  const size_t most = shared_.slot_bytes - bytes;
  if (*begin <= most && *begin % kShmBeginStep == 0) return true;
  *fault = {"beginning in a slot", *begin, most};
  return false;
}

void ShmReceiver::Fill(Recv* recv, const ShmDescriptor& descriptor, uint32_t slot, ShmBegin begin) {
  recv->arrived = recv->bytes;
  if (slot != kShmInline) {
    slots_.held[slot] = true;
    recv->cookie = slot;
    recv->data = shared_.slots + slot * shared_.slot_stride + begin;
    if (IsTimed(*recv)) memory_->BeginSlot(recv->bytes);
    return;
  }
  // One is always free: there are as many cells as receives that can be posted or held.
  const uint32_t cell = free_cells_.back();
  free_cells_.pop_back();
  recv->cookie = kCell | cell;
  recv->data = cells_[cell].bytes;
  std::memcpy(recv->data, descriptor.payload, recv->bytes);
}

// The sender learns of free descriptors half a ring at a time, because reporting each one would move a line per slice.
// The sender waits only when the whole ring is full, and then the report comes within half a ring.
void ShmReceiver::Consume(bool* freed) {
  ++taken_;
  if (taken_ - told_.consumed < shared_.ring_entries / 2) return;
  told_.consumed = taken_;
  shared_.consumed->store(taken_, std::memory_order_release);
  *freed = true;
}

void ShmReceiver::Pop(Code code) {
  Recv* const recv = first_;
  first_ = recv->next;
  if (code != Code::kOk) --in_use_;
  recv->code = code;  // Last: the request may be gone from here on.
}

bool ShmReceiver::Release(Recv* recv) {
  ANNULUS_CHECK(in_use_ > 0);
  --in_use_;
  const uint32_t index = static_cast<uint32_t>(recv->cookie);
  if ((recv->cookie & kCell) != 0) {
    free_cells_.push_back(index);
    return false;
  }
  ANNULUS_CHECK(index < shared_.num_slots && slots_.held[index]);
  slots_.held[index] = false;
  if ((recv->cookie & kInPlace) != 0) {
    const uint64_t region = slots_.regions_held[index];
    (region & kShmOnDevice) != 0 ? devices_.all->Release(region) : regions_->Release(region, recv->data);
  } else if (IsTimed(*recv)) {
    memory_->EndSlot(recv->bytes);
  }
  ReturnSlot(index);
  return true;
}

void ShmReceiver::ReturnSlot(uint32_t slot) {
  slots_.read_ahead[slot] = 0;
  const uint64_t word = (++told_.returned << 32) | slot;
  // Release order covers this end's reads of the slot: the sender writes to it only after it has seen the return.
  shared_.returns[(told_.returned - 1) & (shared_.return_entries - 1)].store(word, std::memory_order_release);
}

void ShmReceiver::FailAll(Code code) {
  while (first_ != nullptr) Pop(code);
}

}  // namespace annulus
