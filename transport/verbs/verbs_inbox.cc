#include "transport/verbs/verbs_inbox.h"

#include <arpa/inet.h>

namespace annulus {

bool VerbsInbox::Read(const ibv_wc& completion, uint32_t cell, VerbsMessage* message) {
  ++received_;
  if (fault_->any()) return false;
  const VerbsImmediate immediate = VerbsImmediate::Unpack(ntohl(completion.imm_data));
  const bool is_write = immediate.kind == VerbsKind::kSlice || immediate.kind == VerbsKind::kPart;
  if ((completion.wc_flags & IBV_WC_WITH_IMM) == 0 || cell >= depth_ ||
      completion.opcode != (is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV)) {
    return Refuse("a message of the wrong kind", static_cast<uint64_t>(completion.opcode));
  }
  message->kind = immediate.kind;
  message->value = immediate.kind == VerbsKind::kShort ? cell : immediate.value;
  if (immediate.kind == VerbsKind::kPart) return CheckPart(immediate.value, completion.byte_len);
  if (!ReadHeader(immediate, cell, completion.byte_len, &message->header)) return false;
  if (immediate.kind != VerbsKind::kUpdate) return CheckSlice(immediate, message->header);
  return message->header.bytes == 0 || Refuse("an update's size", message->header.bytes);
}

bool VerbsInbox::ReadHeader(VerbsImmediate immediate, uint32_t cell, uint32_t message_bytes, VerbsHeader* header) {
  const bool in_slot = immediate.kind == VerbsKind::kSlice;
  if (in_slot && immediate.value >= slots_) return Refuse("a slot's number", immediate.value);
  if (message_bytes < kVerbsHeaderBytes) return Refuse("a message's size", message_bytes);
  // Copied before it is checked: the peer could still write to it.
  if (!ReadVerbsHeader(in_slot ? Slot(immediate.value) : Cell(cell), header).ok()) {
    return Refuse("a header's content", header->ready);
  }
  return message_bytes == kVerbsHeaderBytes + header->ready || Refuse("a message's size", message_bytes);
}

bool VerbsInbox::CheckSlice(VerbsImmediate immediate, const VerbsHeader& header) {
  if (slice_ready_ < slice_bytes_) return Refuse("a slice within a slice, number", header.sequence);
  if (header.sequence != sequence_) return Refuse("a slice's number", header.sequence);
  if (immediate.kind == VerbsKind::kShort) {
    if (header.ready != header.bytes || header.bytes > kVerbsShortBytes)
      return Refuse("a short slice's size", header.bytes);
  } else {
    const uint64_t bit = uint64_t{1} << immediate.value;
    if (header.bytes > slot_bytes_) return Refuse("a slice's size", header.bytes);
    if ((used_ & bit) != 0) return Refuse("a slot that is in use", immediate.value);
    used_ |= bit;
  }
  ++sequence_;
  slice_bytes_ = header.bytes;
  slice_ready_ = header.ready;
  return true;
}

bool VerbsInbox::CheckPart(uint32_t end, uint32_t message_bytes) {
  if (end <= slice_ready_ || end > slice_bytes_) return Refuse("a part's end", end);
  if (message_bytes != end - slice_ready_) return Refuse("a part's size", message_bytes);
  slice_ready_ = end;
  return true;
}

void VerbsInbox::Keep(const VerbsMessage& message) {
  if (waiting_ == depth_) return fault_->Set("messages without credit", waiting_);
  ring_[(first_ + waiting_++) % depth_] = message;
}

}  // namespace annulus
