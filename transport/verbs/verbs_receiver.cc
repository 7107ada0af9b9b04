#include "transport/verbs/verbs_receiver.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace annulus {

bool VerbsReceiver::Post(Recv* recv) {
  if (in_use_ == recv_slots_->count()) return false;
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
  while (first_ != nullptr) {
    const size_t rail = NextRail();
    if (rail == inboxes_.size()) {
      CheckOrder();
      break;
    }
    const VerbsMessage& message = inboxes_[rail]->first();
    if (!IsTakeable(message)) break;
    any = true;
    if (message.kind == VerbsKind::kPart) {
      first_->arrived = message.value;
    } else if (!BeginReceive(message, rail)) {
      return true;
    }
    inboxes_[rail]->DropFirst();
    if (first_->arrived < first_->bytes) continue;
    returns_->untold_lent |= (first_->cookie & kLent) != 0;
    Pop(Code::kOk);
  }
  return any;
}

Recv* VerbsReceiver::ReceiveOf(uint32_t number) const {
  Recv* recv = first_;
  for (uint32_t before = number - returns_->taken_slices; before > 0 && recv != nullptr; --before) recv = recv->next;
  return recv;
}

// A slice that is too large for its receive breaks the link when it is next, and touches nothing before.
VerbsReceiver::NextRead VerbsReceiver::FindRead() const {
  for (size_t rail = 0; rail < inboxes_.size(); ++rail) {
    VerbsReads::Waiting next;
    if (!reads_->Next(rail, &next)) continue;
    Recv* const recv = ReceiveOf(next.number);
    if (recv != nullptr && next.bytes <= recv->capacity) return {rail, recv};
  }
  return {};
}

bool VerbsReceiver::CanRead() const { return reads_->any_waiting() && FindRead().recv != nullptr; }

void VerbsReceiver::Read() {
  while (reads_->any_waiting() && !fault_->any()) {
    const NextRead next = FindRead();
    if (next.recv == nullptr) break;
    reads_->Begin(next.rail, next.recv->landing);
  }
  reads_->Post();
}

// The next slice has not arrived. Each rail brings its slices in order, so one that all rails have passed never comes,
// and none brings one that was taken already.
void VerbsReceiver::CheckOrder() {
  size_t waiting = 0;
  for (const VerbsInbox* const inbox : inboxes_) {
    if (inbox->empty()) continue;
    ++waiting;
    const bool came_twice = !VerbsReached(inbox->first().number(), returns_->taken_slices);
    if (came_twice || waiting == inboxes_.size()) return fault_->Set("a slice's number", inbox->first().number());
  }
}

void VerbsReceiver::EndArrivals() {
  std::array<uint32_t, kMostVerbsRails> ends{};  // By rail: messages of the slices that count.
  slices_ = returns_->taken_slices;
  for (bool found = true; found && !has_partial_;) {
    found = false;
    for (size_t rail = 0; rail < inboxes_.size(); ++rail) {
      const VerbsInbox& inbox = *inboxes_[rail];
      const bool is_partial = inbox.has_partial() && inbox.last() == slices_;
      const uint32_t begin = ends[rail];
      // The first that has not been read ends it: those behind come again.
      if (begin < inbox.size() && inbox.at(begin).number() == slices_ && !HasCome(inbox.at(begin))) break;
      while (ends[rail] < inbox.size() && inbox.at(ends[rail]).number() == slices_) ++ends[rail];
      if (ends[rail] == begin && !is_partial) continue;
      found = true;
      has_partial_ = is_partial;
      break;
    }
    if (found) ++slices_;
  }
  for (size_t rail = 0; rail < inboxes_.size(); ++rail) inboxes_[rail]->DropFrom(ends[rail]);
}

// The next one of those behind the receives of what has arrived.
Recv* VerbsReceiver::TakeReceive() {
  Recv* before = nullptr;
  Recv* recv = first_;
  for (uint32_t left = slices_ - returns_->taken_slices; left > 0 && recv != nullptr; --left) {
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
  has_partial_ = false;
  Pop(Code::kOk);
}

bool VerbsReceiver::BeginReceive(const VerbsMessage& message, size_t rail) {
  Recv* const recv = first_;
  recv->started = true;
  recv->tag = message.header.tag;
  recv->bytes = message.header.bytes;
  if (recv->bytes > recv->capacity) {
    fault_->Set("a slice for a smaller receive, of bytes", recv->bytes);
    return false;
  }
  const bool is_short = message.kind == VerbsKind::kShort;
  const bool is_read = message.header.placed;
  recv->cookie = message.value | (is_short ? kCell : 0) | (message.header.lent ? kLent : 0) | rail << kRailShift;
  recv->data = (is_short ? inboxes_[rail]->Cell(message.value) : recv_slots_->At(message.value)) + kVerbsHeaderBytes;
  recv->arrived = is_read ? recv->bytes : message.header.ready;
  std::byte* const landing = is_read ? reads_->Finish(message.value) : nullptr;
  if (landing == nullptr) return true;
  // Its slot has been of no use.
  recv->data = landing;
  --in_use_;
  FreeSlot(message.value);
  return true;
}

void VerbsReceiver::FreeSlot(uint32_t slot) {
  ANNULUS_CHECK(recv_slots_->Free(slot));
  returns_->Release(slot);
}

void VerbsReceiver::Release(Recv* recv) {
  ANNULUS_CHECK(in_use_ > 0);
  --in_use_;
  const auto index = static_cast<uint32_t>(recv->cookie);
  if ((recv->cookie & kCell) != 0) {
    inboxes_[(recv->cookie >> kRailShift) & 0xff]->FreeCell(index);
    return;
  }
  FreeSlot(index);
}

void VerbsReceiver::FailAll(Code code) {
  while (first_ != nullptr) Pop(code);
}

bool VerbsReceiver::Holds(const Recv& recv) const {
  const auto is_in = [&recv](const VerbsInbox* inbox) { return inbox->Has(recv.data); };
  return recv_slots_->Has(recv.data) || std::ranges::any_of(inboxes_, is_in);
}

void VerbsReceiver::Pop(Code code) {
  Recv* const recv = first_;
  first_ = recv->next;
  code == Code::kOk ? ++returns_->taken_slices : --in_use_;
  recv->code = code;  // Last: the request may be gone from here on.
}

}  // namespace annulus
