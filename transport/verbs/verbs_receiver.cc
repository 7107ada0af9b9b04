#include "transport/verbs/verbs_receiver.h"

#include <arpa/inet.h>

#include "base/check.h"

namespace annulus {

VerbsReceiver::VerbsReceiver(int slots, size_t slot_bytes, const VerbsRecvMemory& memory, VerbsQueuePair* pair,
                             VerbsSender* sender, VerbsReturns* returns, VerbsFault* fault)
    : slots_(static_cast<uint32_t>(slots)),
      slot_bytes_(slot_bytes),
      stride_(VerbsSlotStride(slot_bytes)),
      depth_(VerbsQueueDepth(slots)),
      memory_(memory),
      pair_(pair),
      sender_(sender),
      returns_(returns),
      fault_(fault),
      messages_(depth_) {}

void VerbsReceiver::PostCells() {
  for (uint32_t cell = 0; cell < depth_; ++cell) Repost(cell);
}

void VerbsReceiver::Repost(uint32_t cell) {
  if (!pair_->exists()) return;
  const int error = pair_->PostReceive(cell, memory_.cells + cell * kVerbsCellBytes, memory_.cell_key);
  if (error != 0) fault_->Set("posting a receive", cell, error);
}

bool VerbsReceiver::Refuse(const char* what, uint64_t value) {
  fault_->Set(what, value);
  return false;
}

const std::byte* VerbsReceiver::HeaderOf(VerbsImmediate immediate, uint32_t cell) const {
  return immediate.kind == VerbsKind::kSlice ? memory_.slots + immediate.value * stride_
                                             : memory_.cells + cell * kVerbsCellBytes;
}

void VerbsReceiver::TakeCompletion(const ibv_wc& completion, uint32_t cell) {
  ++received_;
  if (fault_->any()) return;
  const VerbsImmediate immediate = VerbsImmediate::Unpack(ntohl(completion.imm_data));
  const bool is_write = immediate.kind == VerbsKind::kSlice || immediate.kind == VerbsKind::kPart;
  if ((completion.wc_flags & IBV_WC_WITH_IMM) == 0 || cell >= depth_ ||
      completion.opcode != (is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV)) {
    return fault_->Set("a message of the wrong kind", static_cast<uint64_t>(completion.opcode));
  }
  Message message{immediate.kind, immediate.value, {}};
  if (immediate.kind == VerbsKind::kPart) {
    if (!CheckPart(message, completion)) return;
  } else {
    if (immediate.kind == VerbsKind::kSlice && immediate.value >= slots_) {
      return fault_->Set("a slot's number", immediate.value);
    }
    if (completion.byte_len < kVerbsHeaderBytes) return fault_->Set("a message's size", completion.byte_len);
    // Copied before it is checked: the peer could still write to it.
    if (const Status read = ReadVerbsHeader(HeaderOf(immediate, cell), &message.header); !read.ok()) {
      return fault_->Set("a header's content", message.header.ready);
    }
    if (!Check(message, completion)) return;
    sender_->TakeCredits(message.header);
  }
  if (immediate.kind == VerbsKind::kShort) {
    message.value = cell;  // Posted again once its data has been used.
  } else {
    Repost(cell);
  }
  if (immediate.kind == VerbsKind::kUpdate) {
    ++returns_->taken;
    return;
  }
  if (waiting_ == depth_) return fault_->Set("messages without credit", waiting_);
  messages_[(first_message_ + waiting_++) % depth_] = message;
}

bool VerbsReceiver::Check(const Message& message, const ibv_wc& completion) {
  const VerbsHeader& header = message.header;
  if (completion.byte_len != kVerbsHeaderBytes + header.ready) return Refuse("a message's size", completion.byte_len);
  if (message.kind == VerbsKind::kUpdate) return header.bytes == 0 || Refuse("an update's size", header.bytes);
  return CheckSlice(message, completion);
}

bool VerbsReceiver::CheckSlice(const Message& message, const ibv_wc& completion) {
  const VerbsHeader& header = message.header;
  if (slice_ready_ < slice_bytes_) return Refuse("a slice within a slice, number", header.sequence);
  if (header.sequence != sequence_) return Refuse("a slice's number", header.sequence);
  if (message.kind == VerbsKind::kShort) {
    if (header.ready != header.bytes) return Refuse("a short slice's size", header.bytes);
  } else {
    const uint64_t bit = uint64_t{1} << message.value;
    if (header.bytes > slot_bytes_) return Refuse("a slice's size", header.bytes);
    if ((occupied_ & bit) != 0) return Refuse("a slot that is in use", message.value);
    occupied_ |= bit;
  }
  ++sequence_;
  slice_bytes_ = header.bytes;
  slice_ready_ = header.ready;
  return true;
}

bool VerbsReceiver::CheckPart(const Message& message, const ibv_wc& completion) {
  if (message.value <= slice_ready_ || message.value > slice_bytes_) return Refuse("a part's end", message.value);
  if (completion.byte_len != message.value - slice_ready_) return Refuse("a part's size", completion.byte_len);
  slice_ready_ = message.value;
  return true;
}

bool VerbsReceiver::Post(Recv* recv) {
  if (in_use_ == slots_) return false;
  ++in_use_;
  recv->code = Code::kInProgress;
  recv->started = false;
  recv->arrived = 0;
  recv->data = nullptr;
  recv->read_only = false;
  recv->next = nullptr;
  (first_ == nullptr ? first_ : last_->next) = recv;
  last_ = recv;
  return true;
}

bool VerbsReceiver::Advance() {
  bool any = false;
  while (HasWork()) {
    const Message& message = messages_[first_message_];
    any = true;
    if (message.kind == VerbsKind::kPart) {
      first_->arrived = message.value;
    } else if (!Start(message)) {
      return true;
    }
    first_message_ = (first_message_ + 1) % depth_;
    --waiting_;
    if (message.kind != VerbsKind::kShort) ++returns_->taken;
    if (first_->arrived == first_->bytes) Pop(Code::kOk);
  }
  return any;
}

bool VerbsReceiver::Start(const Message& message) {
  Recv* const recv = first_;
  recv->started = true;
  recv->tag = message.header.tag;
  recv->bytes = message.header.bytes;
  if (recv->bytes > recv->capacity) return Refuse("a slice for a smaller receive, of bytes", recv->bytes);
  const bool is_short = message.kind == VerbsKind::kShort;
  recv->cookie = is_short ? kCell | message.value : message.value;
  std::byte* const header =
      is_short ? memory_.cells + message.value * kVerbsCellBytes : memory_.slots + message.value * stride_;
  recv->data = header + kVerbsHeaderBytes;
  recv->arrived = message.header.ready;
  return true;
}

void VerbsReceiver::Release(Recv* recv) {
  ANNULUS_CHECK(in_use_ > 0);
  --in_use_;
  const auto index = static_cast<uint32_t>(recv->cookie);
  if ((recv->cookie & kCell) != 0) {
    Repost(index);
    ++returns_->taken;
    return;
  }
  const uint64_t bit = uint64_t{1} << index;
  ANNULUS_CHECK((occupied_ & bit) != 0);
  occupied_ &= ~bit;
  returns_->released ^= bit;
  ++returns_->untold_slots;
}

void VerbsReceiver::FailAll(Code code) {
  while (first_ != nullptr) Pop(code);
}

void VerbsReceiver::Pop(Code code) {
  Recv* const recv = first_;
  first_ = recv->next;
  if (code != Code::kOk) --in_use_;
  recv->code = code;  // Last: the request may be gone from here on.
}

}  // namespace annulus
