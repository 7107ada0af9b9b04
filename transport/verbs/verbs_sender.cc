#include "transport/verbs/verbs_sender.h"

#include <string>

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
      chain_(VerbsQueueDepth(slots), pair, fault) {}

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
    ++in_place_;
  }
  send->cookie = key;
  send->code = Code::kInProgress;
  send->next = nullptr;
  (first_ == nullptr ? first_ : last_->next) = send;
  last_ = send;
  if (unposted_ == nullptr) unposted_ = send;
  return Status();
}

bool VerbsSender::CanTransmit() const {
  if (unposted_ == nullptr || target_.Credits() < kReserve || chain_.Room() < kReserve + 1) return false;
  const Send& send = *unposted_;
  const bool whole = send.ready == send.bytes;
  if (part_.begun) return whole || send.ready - part_.bytes >= least_part_;
  if (IsShort(send)) return whole;
  return (whole || send.ready >= least_part_) && target_.HasSlot();
}

void VerbsSender::Transmit() {
  while (!fault_->any() && CanTransmit()) {
    Send* const send = unposted_;
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
  if (!part_.begun) FinishPosting(send, chain_.posted());
}

void VerbsSender::AddPart(Send* send) {
  const uint32_t begin = part_.bytes;
  part_.bytes = send->ready;
  const VerbsPiece data{send->data + begin, part_.bytes - begin, static_cast<uint32_t>(send->cookie)};
  ibv_send_wr* const request = AddMessage(IBV_WR_RDMA_WRITE_WITH_IMM, {VerbsKind::kPart, part_.bytes}, data);
  target_.Aim(part_.slot, kVerbsHeaderBytes + begin, request);
  chain_.AskForCompletion();
  part_.begun = part_.bytes < send->bytes;
  if (!part_.begun) FinishPosting(send, chain_.posted());
}

void VerbsSender::FinishPosting(Send* send, uint32_t done_with) {
  send->cookie = CookieOf(done_with, target_.messages());
  unposted_ = send->next;
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
// send that again, from the owner's memory.
bool VerbsSender::IsDone(const Send& send, bool is_stopped) const {
  return VerbsReached(chain_.completed(), static_cast<uint32_t>(send.cookie)) ||
         ((is_stopped || slots_.Has(send.data)) && target_.HasReceived(static_cast<uint32_t>(send.cookie >> 32)));
}

bool VerbsSender::Complete(bool is_stopped) {
  bool any = false;
  while (first_ != unposted_ && IsDone(*first_, is_stopped)) {
    Pop(Code::kOk);
    any = true;
  }
  return any;
}

void VerbsSender::FailAll(Code code) {
  while (first_ != nullptr) Pop(code);
  unposted_ = nullptr;
  part_.begun = false;
}

void VerbsSender::Pop(Code code) {
  Send* const send = first_;
  first_ = send->next;
  if (slots_.Has(send->data)) {
    slots_.Free(send->data);
  } else {
    --in_place_;
  }
  send->code = code;  // Last: the request may be gone from here on.
}

}  // namespace annulus
