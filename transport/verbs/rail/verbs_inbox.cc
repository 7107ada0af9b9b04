#include "transport/verbs/rail/verbs_inbox.h"

#include <arpa/inet.h>

#include <utility>

namespace annulus {

void VerbsInbox::PostCells(uint32_t key) {
  for (uint32_t cell = 0; cell < depth_; ++cell) {
    pair_->MakeReceive(cell, Cell(cell), key, &receives_[cell]);
    Repost(cell);
  }
  PostReceives();
}

void VerbsInbox::Repost(uint32_t cell) {
  ibv_recv_wr* const request = &receives_[cell].request;
  request->next = nullptr;
  (unposted_.first == nullptr ? unposted_.first : unposted_.last->next) = request;
  unposted_.last = request;
}

void VerbsInbox::PostReceives() {
  ibv_recv_wr* const first = std::exchange(unposted_.first, nullptr);
  if (first == nullptr || !pair_->exists()) return;
  ibv_recv_wr* bad = nullptr;
  const int error = pair_->PostReceives(first, &bad);
  for (const ibv_recv_wr* each = first; each != (error != 0 ? bad : nullptr); each = each->next) ++cells_posted_;
  if (error != 0) link_.fault->Set("posting a receive", 0, error);
}

void VerbsInbox::OnCompletion(const ibv_wc& completion, uint32_t cell) {
  --cells_posted_;
  link_.returns->last_rail = outbox_->index();
  VerbsMessage message;
  if (!Read(completion, cell, &message)) return;
  if (message.kind != VerbsKind::kPart) {
    link_.target->OnReturns(message.header);
    outbox_->OnCredits(message.header.taken);
  }
  // The cell of a short slice is posted again once its data has been used.
  if (message.kind != VerbsKind::kShort) Repost(cell);
  if (message.kind == VerbsKind::kUpdate) return outbox_->CountTaken();
  if (waiting_ == depth_) return link_.fault->Set("messages without credit", waiting_);
  if (message.header.placed) link_.reads->Add(outbox_->index(), message.value, message.header, message.place);
  ring_[(first_ + waiting_++) % depth_] = message;
}

bool VerbsInbox::Read(const ibv_wc& completion, uint32_t cell, VerbsMessage* message) {
  ++received_;
  if (link_.fault->any()) return false;
  const VerbsImmediate immediate = VerbsImmediate::Unpack(ntohl(completion.imm_data));
  const bool is_write = immediate.kind == VerbsKind::kSlice || immediate.kind == VerbsKind::kPart;
  if ((completion.wc_flags & IBV_WC_WITH_IMM) == 0 || cell >= depth_ ||
      completion.opcode != (is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV)) {
    return Refuse("a message of the wrong kind", static_cast<uint64_t>(completion.opcode));
  }
  message->kind = immediate.kind;
  message->value = immediate.kind == VerbsKind::kShort ? cell : immediate.value;
  if (immediate.kind == VerbsKind::kPart) {
    message->header.sequence = last_;
    return CheckPart(immediate.value, completion.byte_len);
  }
  if (!ReadHeader(immediate, cell, completion.byte_len, message)) return false;
  if (immediate.kind != VerbsKind::kUpdate) return CheckSlice(immediate, message->header);
  return message->header.bytes == 0 || Refuse("an update's size", message->header.bytes);
}

bool VerbsInbox::ReadHeader(VerbsImmediate immediate, uint32_t cell, uint32_t message_bytes, VerbsMessage* message) {
  VerbsHeader* const header = &message->header;
  const bool in_slot = immediate.kind == VerbsKind::kSlice;
  if (in_slot && immediate.value >= link_.recv_slots->count()) return Refuse("a slot's number", immediate.value);
  if (message_bytes < kVerbsHeaderBytes) return Refuse("a message's size", message_bytes);
  // Copied before it is checked: the peer could still write to it.
  const std::byte* const from = in_slot ? link_.recv_slots->At(immediate.value) : Cell(cell);
  if (!ReadVerbsHeader(from, header).ok()) return Refuse("a header's content", immediate.value);
  header->ready = message_bytes - static_cast<uint32_t>(kVerbsHeaderBytes);
  if (header->placed) {
    if (!in_slot || !link_.reads->allowed(outbox_->index()))
      return Refuse("a slice to be read, number", header->sequence);
    if (header->ready != kVerbsPlaceBytes) return Refuse("a message's size", message_bytes);
    header->ready = 0;
    return ReadVerbsPlace(from + kVerbsHeaderBytes, header->bytes, &message->place) ||
           Refuse("a slice at a place of bytes", header->bytes);
  }
  return header->ready <= header->bytes || Refuse("a message's size", message_bytes);
}

// Which slice comes next is known when those of all rails are put in order; here, that it can be one of those under
// way, and comes after the last one of this rail, unless that one was taken long ago.
bool VerbsInbox::CheckSlice(VerbsImmediate immediate, const VerbsHeader& header) {
  if (has_partial()) return Refuse("a slice within a slice, number", header.sequence);
  const uint32_t next = link_.returns->taken_slices;
  const uint32_t most_waiting = depth_ * static_cast<uint32_t>(link_.rails);
  const bool is_behind = last_ - next <= most_waiting && header.sequence - next <= last_ - next;
  if (is_behind || header.sequence - next > most_waiting) {
    return Refuse("a slice's number", header.sequence);
  }
  if (immediate.kind == VerbsKind::kShort) {
    if (header.ready != header.bytes || header.bytes > kVerbsShortBytes)
      return Refuse("a short slice's size", header.bytes);
  } else {
    if (header.bytes > link_.recv_slots->bytes()) return Refuse("a slice's size", header.bytes);
    if (!link_.recv_slots->Use(immediate.value)) return Refuse("a slot that is in use", immediate.value);
  }
  last_ = header.sequence;
  slice_bytes_ = header.bytes;
  // Nothing more comes of one that this end reads.
  slice_ready_ = header.placed ? header.bytes : header.ready;
  return true;
}

bool VerbsInbox::CheckPart(uint32_t end, uint32_t message_bytes) {
  if (end <= slice_ready_ || end > slice_bytes_) return Refuse("a part's end", end);
  if (message_bytes != end - slice_ready_) return Refuse("a part's size", message_bytes);
  slice_ready_ = end;
  return true;
}

void VerbsInbox::OnFarewell(uint32_t sent) {
  if (!VerbsReached(received_, sent) && sent - received_ > depth_) link_.fault->Set("a number of sent messages", sent);
}

}  // namespace annulus
