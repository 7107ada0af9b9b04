#include "transport/verbs/verbs_sender.h"

#include <string>

namespace annulus {
namespace {

// In Send::cookie: the requests after which it is done, below the messages up to it.
uint64_t CookieOf(uint32_t requests, uint32_t messages) { return uint64_t{messages} << 32 | requests; }

bool IsShort(const Send& send) { return send.bytes <= kVerbsShortBytes; }

}  // namespace

VerbsSender::VerbsSender(int slots, size_t slot_bytes, uint32_t least_part, const VerbsSendMemory& memory,
                         VerbsQueuePair* pair, VerbsReturns* returns, VerbsFault* fault)
    : least_part_(least_part),
      depth_(VerbsQueueDepth(slots)),
      headers_(memory.headers),
      returns_(returns),
      fault_(fault),
      slots_(slots, slot_bytes, memory.slots),
      target_(slots, slot_bytes, fault),
      chain_(depth_, pair, fault) {}

Status VerbsSender::Post(Send* send) {
  if (send->bytes > slots_.bytes() || send->ready > send->bytes) {
    return Status::Invalid("a slice of " + std::to_string(send->bytes) + " bytes, " + std::to_string(send->ready) +
                           " of them ready, for a slot of " + std::to_string(slots_.bytes()) + " bytes");
  }
  if (!slots_.TakeBack(send->data)) return Status::Invalid("verbs links send only slots that AcquireSlot lent");
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
  if (begun_) return whole || send.ready - part_bytes_ >= least_part_;
  if (IsShort(send)) return whole;
  return (whole || send.ready >= least_part_) && target_.HasSlot();
}

void VerbsSender::Transmit() {
  while (!fault_->any() && CanTransmit()) {
    Send* const send = unposted_;
    if (begun_) {
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

ibv_send_wr* VerbsSender::AddMessage(ibv_wr_opcode opcode, const std::byte* data, size_t bytes,
                                     VerbsImmediate immediate) {
  target_.CountMessage();
  return chain_.Add(opcode, data, bytes, immediate);
}

void VerbsSender::AddShort(Send* send) {
  std::byte* const header = VerbsSlots::HeaderOf(send->data);
  WriteVerbsHeader(HeaderOf(send, send->bytes), header);
  const size_t bytes = kVerbsHeaderBytes + send->bytes;
  const ibv_send_wr* const request = AddMessage(IBV_WR_SEND_WITH_IMM, header, bytes, {VerbsKind::kShort, 0});
  // What a request carries itself is copied when it is posted.
  const bool copied = (request->send_flags & IBV_SEND_INLINE) != 0;
  if (!copied) chain_.AskForCompletion();
  FinishPosting(send, copied ? chain_.completed() : chain_.posted());
}

void VerbsSender::AddFirst(Send* send) {
  part_slot_ = target_.TakeSlot();
  part_bytes_ = send->ready;
  std::byte* const header = VerbsSlots::HeaderOf(send->data);
  WriteVerbsHeader(HeaderOf(send, part_bytes_), header);
  ibv_send_wr* const request =
      AddMessage(IBV_WR_RDMA_WRITE_WITH_IMM, header, kVerbsHeaderBytes + part_bytes_, {VerbsKind::kSlice, part_slot_});
  target_.Aim(part_slot_, 0, request);
  chain_.AskForCompletion();
  begun_ = part_bytes_ < send->bytes;
  if (!begun_) FinishPosting(send, chain_.posted());
}

void VerbsSender::AddPart(Send* send) {
  const uint32_t begin = part_bytes_;
  part_bytes_ = send->ready;
  ibv_send_wr* const request =
      AddMessage(IBV_WR_RDMA_WRITE_WITH_IMM, send->data + begin, part_bytes_ - begin, {VerbsKind::kPart, part_bytes_});
  target_.Aim(part_slot_, kVerbsHeaderBytes + begin, request);
  chain_.AskForCompletion();
  begun_ = part_bytes_ < send->bytes;
  if (!begun_) FinishPosting(send, chain_.posted());
}

void VerbsSender::FinishPosting(Send* send, uint32_t done_with) {
  send->cookie = CookieOf(done_with, target_.messages());
  unposted_ = send->next;
}

void VerbsSender::SendUpdate(bool half_of_receives) {
  const uint32_t least_credits = half_of_receives ? 1 : 2;
  if (fault_->any() || target_.Credits() < least_credits || chain_.Room() < 2) return;
  std::byte* const header = headers_ + chain_.posted() % depth_ * kVerbsHeaderBytes;
  WriteVerbsHeader(HeaderOf(nullptr, 0), header);
  AddMessage(IBV_WR_SEND_WITH_IMM, header, kVerbsHeaderBytes, {VerbsKind::kUpdate, 0});
  chain_.Post();
}

// A write of nothing, behind all other requests: it needs no receive and touches no memory.
void VerbsSender::Flush() {
  if (fault_->any() || !chain_.has_unsignaled() || chain_.Room() == 0) return;
  target_.Aim(0, 0, chain_.Add(IBV_WR_RDMA_WRITE, nullptr, 0, {}));
  chain_.AskForCompletion();
  chain_.Post();
}

bool VerbsSender::IsDone(const Send& send) const {
  return VerbsReached(chain_.completed(), static_cast<uint32_t>(send.cookie)) ||
         target_.HasReceived(static_cast<uint32_t>(send.cookie >> 32));
}

bool VerbsSender::Complete() {
  bool any = false;
  while (first_ != unposted_ && IsDone(*first_)) {
    Pop(Code::kOk);
    any = true;
  }
  return any;
}

void VerbsSender::FailAll(Code code) {
  while (first_ != nullptr) Pop(code);
  unposted_ = nullptr;
  begun_ = false;
}

void VerbsSender::Pop(Code code) {
  Send* const send = first_;
  first_ = send->next;
  slots_.Free(send->data);
  send->code = code;  // Last: the request may be gone from here on.
}

}  // namespace annulus
