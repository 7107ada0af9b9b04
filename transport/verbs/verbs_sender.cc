#include "transport/verbs/verbs_sender.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"

namespace annulus {
namespace {

// In Send::cookie, once it is handed over: the requests after which it is done, below the messages up to it. Until then
// it is the local key of its data.
uint64_t CookieOf(uint32_t requests, uint32_t messages) { return uint64_t{messages} << 32 | requests; }

bool IsShort(const Send& send) { return send.bytes <= kVerbsShortBytes; }

}  // namespace

VerbsSender::VerbsSender(int slots, size_t slot_bytes, uint32_t least_part, const VerbsSendMemory& memory,
                         VerbsRegions* regions, VerbsQueuePair* pair, VerbsReturns* returns, VerbsFault* fault)
    : least_part_(least_part),
      num_headers_(VerbsHeaders(slots)),
      memory_(memory),
      regions_(regions),
      returns_(returns),
      fault_(fault),
      slots_(slots, slot_bytes, memory.slots),
      target_(slots, slot_bytes, fault),
      chain_(VerbsQueueDepth(slots), pair, fault),
      kept_(slots, false) {}

Status VerbsSender::Post(Send* send) {
  if (send->bytes > slots_.bytes() || send->ready > send->bytes) {
    return Status::Invalid("a slice of " + std::to_string(send->bytes) + " bytes, " + std::to_string(send->ready) +
                           " of them ready, for a slot of " + std::to_string(slots_.bytes()) + " bytes");
  }
  uint32_t key = memory_.key;
  if (!slots_.TakeBack(send->data)) {
    const bool is_large = send->bytes > kVerbsShortBytes;
    if (slots_.Has(send->data) || !is_large || !regions_->Find(send->data, send->bytes, &key)) {
      return Status::Invalid("verbs links send slots that AcquireSlot lent, and large slices in registered memory");
    }
    ++queue_.in_place;
  }
  send->cookie = key;
  send->code = Code::kInProgress;
  send->next = nullptr;
  (queue_.first == nullptr ? queue_.first : queue_.last->next) = send;
  queue_.last = send;
  if (queue_.unposted == nullptr) queue_.unposted = send;
  return Status();
}

bool VerbsSender::CanTransmit() const {
  if (queue_.unposted == nullptr || target_.Credits() < kReserve || chain_.Room() < kReserve + 1) return false;
  const Send& send = *queue_.unposted;
  const bool whole = send.ready == send.bytes;
  if (part_.begun) return whole || send.ready - part_.bytes >= least_part_;
  if (IsShort(send)) return whole;
  return (whole || send.ready >= least_part_) && target_.HasSlot();
}

// What can be dropped is dropped first, so that there is room for what is kept. What has left whole is completed at
// once.
bool VerbsSender::Advance(bool transmits) {
  const bool any = Complete();
  if (!transmits) return any;
  Transmit();
  return Complete() || any;
}

void VerbsSender::Transmit() {
  while (!fault_->any() && CanTransmit()) {
    Send* const send = queue_.unposted;
    if (part_.begun) {
      AddPart(send);
    } else if (IsShort(*send)) {
      AddShort(send);
    } else {
      AddFirst(send);
    }
    if (chain_.is_full()) chain_.Post();
  }
  chain_.Post();
}

VerbsHeader VerbsSender::HeaderOf(const Send* send, uint32_t ready) {
  VerbsHeader header;
  header.released = returns_->released;
  header.taken = returns_->taken;
  returns_->Told();
  if (send == nullptr) return header;
  header.tag = send->tag;
  header.bytes = send->bytes;
  header.ready = ready;
  header.sequence = sequence_++;
  header.lent = kept_.keeps() && !slots_.Has(send->data);
  return header;
}

ibv_send_wr* VerbsSender::AddMessage(ibv_wr_opcode opcode, VerbsImmediate immediate, const VerbsPiece& first,
                                     const VerbsPiece& second) {
  target_.CountMessage();
  return chain_.Add(opcode, immediate, first, second);
}

void VerbsSender::AddShort(Send* send) {
  std::byte* const header = VerbsSlots::HeaderOf(send->data);
  WriteVerbsHeader(HeaderOf(send, send->bytes), header);
  const size_t bytes = kVerbsHeaderBytes + send->bytes;
  const ibv_send_wr* const request = AddMessage(IBV_WR_SEND_WITH_IMM, {VerbsKind::kShort, 0}, Own(header, bytes));
  // What a request carries itself is copied when it is posted.
  const bool copied = (request->send_flags & IBV_SEND_INLINE) != 0;
  if (!copied) chain_.AskForCompletion();
  FinishPosting(send, copied ? chain_.completed() : chain_.posted());
}

void VerbsSender::AddFirst(Send* send) {
  part_.slot = target_.TakeSlot();
  part_.bytes = send->ready;
  const bool in_slot = slots_.Has(send->data);
  std::byte* const header = in_slot ? VerbsSlots::HeaderOf(send->data) : NextHeader();
  WriteVerbsHeader(HeaderOf(send, part_.bytes), header);
  const VerbsPiece data{send->data, part_.bytes, static_cast<uint32_t>(send->cookie)};
  const VerbsImmediate immediate{VerbsKind::kSlice, part_.slot};
  ibv_send_wr* const request =
      in_slot ? AddMessage(IBV_WR_RDMA_WRITE_WITH_IMM, immediate, Own(header, kVerbsHeaderBytes + part_.bytes))
              : AddMessage(IBV_WR_RDMA_WRITE_WITH_IMM, immediate, Own(header, kVerbsHeaderBytes), data);
  target_.Aim(part_.slot, 0, request);
  chain_.AskForCompletion();
  part_.begun = part_.bytes < send->bytes;
  if (part_.begun) return;
  target_.EndSlice(part_.slot);
  FinishPosting(send, chain_.posted());
}

void VerbsSender::AddPart(Send* send) {
  const uint32_t begin = part_.bytes;
  part_.bytes = send->ready;
  const VerbsPiece data{send->data + begin, part_.bytes - begin, static_cast<uint32_t>(send->cookie)};
  ibv_send_wr* const request = AddMessage(IBV_WR_RDMA_WRITE_WITH_IMM, {VerbsKind::kPart, part_.bytes}, data);
  target_.Aim(part_.slot, kVerbsHeaderBytes + begin, request);
  chain_.AskForCompletion();
  part_.begun = part_.bytes < send->bytes;
  if (part_.begun) return;
  target_.EndSlice(part_.slot);
  FinishPosting(send, chain_.posted());
}

void VerbsSender::FinishPosting(Send* send, uint32_t done_with) {
  send->cookie = CookieOf(done_with, target_.messages());
  queue_.unposted = send->next;
  if (kept_.keeps()) kept_.Add({send->tag, send->data, send->bytes, target_.messages(), done_with});
}

void VerbsSender::SendUpdate(bool half_of_receives) {
  const uint32_t least_credits = half_of_receives ? 1 : 2;
  if (fault_->any() || target_.Credits() < least_credits || chain_.Room() < 2) return;
  std::byte* const header = NextHeader();
  WriteVerbsHeader(HeaderOf(nullptr, 0), header);
  AddMessage(IBV_WR_SEND_WITH_IMM, {VerbsKind::kUpdate, 0}, Own(header, kVerbsHeaderBytes));
  chain_.Post();
}

// A write of nothing, behind all other requests: it needs no receive and touches no memory.
void VerbsSender::Flush() {
  if (fault_->any() || !chain_.has_unsignaled() || chain_.Room() == 0) return;
  target_.Aim(0, 0, chain_.Add(IBV_WR_RDMA_WRITE, {}, {}));
  chain_.AskForCompletion();
  chain_.Post();
}

// A peer that has left may have received what its device did not acknowledge. Until the device here is stopped it may
// send that again, from the owner's memory. Where slices are kept, an owner's memory is, too.
bool VerbsSender::IsDone(const Send& send, bool is_stopped) const {
  const bool in_slot = slots_.Has(send.data);
  const auto messages = static_cast<uint32_t>(send.cookie >> 32);
  if ((is_stopped || in_slot) && target_.HasReceived(messages)) return true;
  return VerbsReached(chain_.completed(), static_cast<uint32_t>(send.cookie)) &&
         (in_slot || !kept_.keeps() || target_.HasReached(messages));
}

bool VerbsSender::CanDrop() const {
  if (kept_.completed() == 0) return false;
  const VerbsKeptSlice& slice = kept_.at(0);
  return target_.HasReached(slice.message) &&
         (!slots_.Has(slice.data) || VerbsReached(chain_.completed(), slice.request));
}

void VerbsSender::DropFirst() {
  const std::byte* const data = kept_.at(0).data;
  if (slots_.Has(data)) slots_.Free(data);
  kept_.DropFirst();
}

bool VerbsSender::Complete(bool is_stopped) {
  bool any = false;
  while (queue_.first != queue_.unposted && IsDone(*queue_.first, is_stopped)) {
    Pop(Code::kOk);
    any = true;
  }
  while (CanDrop()) {
    DropFirst();
    any = true;
  }
  return any;
}

bool VerbsSender::CanCopyLent() const {
  if (!kept_.keeps() || queue_.first == queue_.unposted || !slots_.any_free()) return false;
  const Send& send = *queue_.first;
  return !slots_.Has(send.data) && VerbsReached(chain_.completed(), static_cast<uint32_t>(send.cookie));
}

void VerbsSender::CopyLent() {
  std::byte* const slot = slots_.Lend();
  ANNULUS_CHECK(slot != nullptr && slots_.TakeBack(slot));
  std::memcpy(slot, queue_.first->data, queue_.first->bytes);
  kept_.at(kept_.completed()).data = slot;
  Pop(Code::kOk);
}

bool VerbsSender::BeginCarrying(uint32_t slices) {
  const uint32_t handed_over = sequence_ - (part_.begun ? 1 : 0);
  const uint32_t received = slices - (handed_over - kept_.size());
  if (received > kept_.size()) return false;
  for (uint32_t i = 0; i < received; ++i) {
    if (kept_.completed() == 0) Pop(Code::kOk);
    DropFirst();
  }
  return true;
}

bool VerbsSender::NextToCarry(bool only_completed, CarriedSlice* slice) {
  if (carried_ < kept_.completed()) {
    const VerbsKeptSlice& kept = kept_.at(carried_++);
    *slice = {kept.tag, kept.data, kept.bytes, nullptr, true};
    return true;
  }
  if (only_completed) return false;
  const Send* send = queue_.first;
  for (uint32_t i = kept_.completed(); i < carried_ && send != nullptr; ++i) send = send->next;
  if (send == nullptr) return false;
  const bool begun = carried_ < kept_.size() || (part_.begun && send == queue_.unposted);
  *slice = {send->tag, send->data, send->bytes, send, begun};
  ++carried_;
  return true;
}

void VerbsSender::Carried() {
  ANNULUS_CHECK(carried_ > 0);
  --carried_;
  if (kept_.empty()) {
    part_.begun = false;
    return Pop(Code::kOk);
  }
  if (kept_.completed() == 0) Pop(Code::kOk);
  DropFirst();
}

void VerbsSender::FailAll(Code code) {
  while (queue_.first != nullptr) Pop(code);
  kept_.DropUncompleted();
  carried_ = std::min(carried_, kept_.size());
  part_.begun = false;
}

// What is kept is in its slot until it is dropped, unless it was copied.
void VerbsSender::Pop(Code code) {
  Send* const send = queue_.first;
  const bool is_kept = kept_.keeps() && send != queue_.unposted && code == Code::kOk;
  queue_.first = send->next;
  if (queue_.unposted == send) queue_.unposted = send->next;
  if (!slots_.Has(send->data)) {
    --queue_.in_place;
  } else if (!is_kept || IsShort(*send)) {
    slots_.Free(send->data);
  }
  if (is_kept) kept_.CompleteNext();
  send->code = code;  // Last: the request may be gone from here on.
}

}  // namespace annulus
