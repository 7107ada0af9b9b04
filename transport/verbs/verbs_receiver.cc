#include "transport/verbs/verbs_receiver.h"

#include "base/check.h"

namespace annulus {

VerbsReceiver::VerbsReceiver(int slots, size_t slot_bytes, const VerbsRecvMemory& memory, VerbsQueuePair* pair,
                             VerbsTarget* target, VerbsReturns* returns, VerbsFault* fault)
    : slots_(static_cast<uint32_t>(slots)),
      pair_(pair),
      target_(target),
      returns_(returns),
      fault_(fault),
      inbox_(slots, slot_bytes, memory, fault) {}

void VerbsReceiver::PostCells(uint32_t key) {
  key_ = key;
  for (uint32_t cell = 0; cell < VerbsQueueDepth(static_cast<int>(slots_)); ++cell) Repost(cell);
}

void VerbsReceiver::Repost(uint32_t cell) {
  if (!pair_->exists()) return;
  const int error = pair_->PostReceive(cell, inbox_.Cell(cell), key_);
  if (error != 0) return fault_->Set("posting a receive", cell, error);
  ++cells_posted_;
}

void VerbsReceiver::TakeCompletion(const ibv_wc& completion, uint32_t cell) {
  --cells_posted_;
  VerbsMessage message;
  if (!inbox_.Read(completion, cell, &message)) return;
  if (message.kind != VerbsKind::kPart) target_->TakeCredits(message.header);
  // The cell of a short slice is posted again once its data has been used.
  if (message.kind != VerbsKind::kShort) Repost(cell);
  if (message.kind == VerbsKind::kUpdate) {
    ++returns_->taken;
  } else {
    inbox_.Keep(message);
  }
}

bool VerbsReceiver::Post(Recv* recv) {
  if (in_use_ == slots_) return false;
  ++in_use_;
  ++posted_;
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
    const VerbsMessage& message = inbox_.first();
    any = true;
    if (message.kind == VerbsKind::kPart) {
      first_->arrived = message.value;
    } else if (!Start(message)) {
      return true;
    }
    if (message.kind != VerbsKind::kShort) ++returns_->taken;
    inbox_.DropFirst();
    if (first_->arrived < first_->bytes) continue;
    returns_->untold_lent |= (first_->cookie & kLent) != 0;
    Pop(Code::kOk);
  }
  return any;
}

// The next one of those behind the receives of what has arrived.
Recv* VerbsReceiver::TakeBack() {
  Recv* before = nullptr;
  Recv* recv = first_;
  for (uint32_t left = inbox_.slices() - completed_; left > 0 && recv != nullptr; --left) {
    before = recv;
    recv = recv->next;
  }
  if (recv == nullptr) return nullptr;
  (before == nullptr ? first_ : before->next) = recv->next;
  if (last_ == recv) last_ = before;
  --in_use_;
  --posted_;
  return recv;
}

void VerbsReceiver::PartialArrived(uint32_t arrived) {
  first_->arrived = arrived;
  if (arrived < first_->bytes) return;
  inbox_.EndPartial();
  Pop(Code::kOk);
}

bool VerbsReceiver::Start(const VerbsMessage& message) {
  Recv* const recv = first_;
  recv->started = true;
  recv->tag = message.header.tag;
  recv->bytes = message.header.bytes;
  if (recv->bytes > recv->capacity) {
    fault_->Set("a slice for a smaller receive, of bytes", recv->bytes);
    return false;
  }
  const bool is_short = message.kind == VerbsKind::kShort;
  recv->cookie = message.value | (is_short ? kCell : 0) | (message.header.lent ? kLent : 0);
  recv->data = (is_short ? inbox_.Cell(message.value) : inbox_.Slot(message.value)) + kVerbsHeaderBytes;
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
  ANNULUS_CHECK(inbox_.FreeSlot(index));
  returns_->released ^= uint64_t{1} << index;
  ++returns_->untold_slots;
}

void VerbsReceiver::FailAll(Code code) {
  while (first_ != nullptr) Pop(code);
}

void VerbsReceiver::TakeFarewell(uint32_t sent) {
  if (VerbsReached(received(), sent)) return;
  if (sent - received() > VerbsQueueDepth(static_cast<int>(slots_))) fault_->Set("a number of sent messages", sent);
}

void VerbsReceiver::Pop(Code code) {
  Recv* const recv = first_;
  first_ = recv->next;
  code == Code::kOk ? ++completed_ : --in_use_;
  recv->code = code;  // Last: the request may be gone from here on.
}

}  // namespace annulus
