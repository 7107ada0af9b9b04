#include "transport/verbs/verbs_sender.h"

#include <arpa/inet.h>

#include <bit>
#include <string>

#include "base/check.h"

namespace annulus {
namespace {

constexpr uint64_t AllSlots(int slots) { return slots == 64 ? ~uint64_t{0} : (uint64_t{1} << slots) - 1; }

// Whether `count` has reached `goal`; both wrap around.
bool Reached(uint32_t count, uint32_t goal) { return static_cast<int32_t>(count - goal) >= 0; }

// In Send::cookie: the requests after which it is done, below the messages up to it.
uint64_t CookieOf(uint32_t requests, uint32_t messages) { return uint64_t{messages} << 32 | requests; }

}  // namespace

VerbsSender::VerbsSender(int slots, size_t slot_bytes, uint32_t least_part, const VerbsSendMemory& memory,
                         VerbsQueuePair* pair, VerbsReturns* returns, VerbsFault* fault)
    : slots_(slots),
      slot_bytes_(slot_bytes),
      stride_(VerbsSlotStride(slot_bytes)),
      least_part_(least_part),
      depth_(VerbsQueueDepth(slots)),
      memory_(memory),
      pair_(pair),
      returns_(returns),
      fault_(fault),
      lent_(static_cast<size_t>(slots), false) {
  for (int i = slots; i > 0; --i) free_.push_back(static_cast<uint32_t>(i - 1));
}

void VerbsSender::Reach(const VerbsGreeting& peer) {
  peer_address_ = peer.address;
  peer_key_ = peer.key;
}

std::byte* VerbsSender::TakeSlot() {
  if (free_.empty()) return nullptr;
  const uint32_t slot = free_.back();
  free_.pop_back();
  lent_[slot] = true;
  return SlotAt(slot);
}

Status VerbsSender::Post(Send* send) {
  const size_t offset = static_cast<size_t>(send->data - SlotAt(0));
  const size_t slot = offset / stride_;
  const bool is_lent = send->data >= SlotAt(0) && slot < lent_.size() && offset % stride_ == 0 && lent_[slot];
  if (!is_lent) return Status::Invalid("verbs links send only slots that AcquireSlot lent");
  if (send->bytes > slot_bytes_ || send->ready > send->bytes) {
    return Status::Invalid("a slice of " + std::to_string(send->bytes) + " bytes, " + std::to_string(send->ready) +
                           " of them ready, for a slot of " + std::to_string(slot_bytes_) + " bytes");
  }
  lent_[slot] = false;
  send->code = Code::kInProgress;
  send->next = nullptr;
  (first_ == nullptr ? first_ : last_->next) = send;
  last_ = send;
  if (unposted_ == nullptr) unposted_ = send;
  return Status();
}

bool VerbsSender::CanTransmit() const {
  if (unposted_ == nullptr || Credits() < kReserve || Room() < kReserve + 1) return false;
  const Send& send = *unposted_;
  const bool whole = send.ready == send.bytes;
  if (begun_) return whole || send.ready - part_bytes_ >= least_part_;
  if (IsShort(send)) return whole;
  return (whole || send.ready >= least_part_) && (~at_peer_ & AllSlots(slots_)) != 0;
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
    if (chained_ == kMostChain) PostChain(false);
  }
  PostChain(false);
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

void VerbsSender::AddShort(Send* send) {
  std::byte* const header = const_cast<std::byte*>(send->data) - kVerbsHeaderBytes;
  WriteVerbsHeader(HeaderOf(send, send->bytes), header);
  const size_t bytes = kVerbsHeaderBytes + send->bytes;
  ibv_send_wr* const request = AddRequest(IBV_WR_SEND_WITH_IMM, header, bytes, {VerbsKind::kShort, 0});
  // What a request carries itself is copied when it is posted.
  const bool copied = (request->send_flags & IBV_SEND_INLINE) != 0;
  chain_waits_ |= !copied;
  FinishPosting(send, copied ? completed_ : posted_);
}

void VerbsSender::AddFirst(Send* send) {
  part_slot_ = static_cast<uint32_t>(std::countr_zero(~at_peer_ & AllSlots(slots_)));
  at_peer_ |= uint64_t{1} << part_slot_;
  part_bytes_ = send->ready;
  std::byte* const header = const_cast<std::byte*>(send->data) - kVerbsHeaderBytes;
  WriteVerbsHeader(HeaderOf(send, part_bytes_), header);
  ibv_send_wr* const request =
      AddRequest(IBV_WR_RDMA_WRITE_WITH_IMM, header, kVerbsHeaderBytes + part_bytes_, {VerbsKind::kSlice, part_slot_});
  request->wr.rdma.remote_addr = peer_address_ + part_slot_ * stride_;
  chain_waits_ = true;
  begun_ = part_bytes_ < send->bytes;
  if (!begun_) FinishPosting(send, posted_);
}

void VerbsSender::AddPart(Send* send) {
  const uint32_t begin = part_bytes_;
  part_bytes_ = send->ready;
  ibv_send_wr* const request =
      AddRequest(IBV_WR_RDMA_WRITE_WITH_IMM, send->data + begin, part_bytes_ - begin, {VerbsKind::kPart, part_bytes_});
  request->wr.rdma.remote_addr = peer_address_ + part_slot_ * stride_ + kVerbsHeaderBytes + begin;
  chain_waits_ = true;
  begun_ = part_bytes_ < send->bytes;
  if (!begun_) FinishPosting(send, posted_);
}

void VerbsSender::FinishPosting(Send* send, uint32_t done_with) {
  send->cookie = CookieOf(done_with, messages_);
  unposted_ = send->next;
}

ibv_send_wr* VerbsSender::AddRequest(ibv_wr_opcode opcode, const std::byte* data, size_t bytes,
                                     VerbsImmediate immediate) {
  ANNULUS_CHECK(chained_ < kMostChain);
  const auto index = static_cast<size_t>(chained_++);
  pieces_[index] = {reinterpret_cast<uint64_t>(data), static_cast<uint32_t>(bytes), memory_.key};
  ibv_send_wr& request = chain_[index];
  request = {};
  request.sg_list = &pieces_[index];
  request.num_sge = 1;
  request.opcode = opcode;
  request.imm_data = htonl(immediate.Pack());
  request.wr.rdma.rkey = peer_key_;
  request.wr_id = pair_->SendId(++posted_);
  ++messages_;
  if (opcode == IBV_WR_SEND_WITH_IMM && bytes <= pair_->inline_bytes()) request.send_flags = IBV_SEND_INLINE;
  if (index > 0) chain_[index - 1].next = &request;
  return &request;
}

void VerbsSender::PostChain(bool signal) {
  if (chained_ == 0) return;
  unsignaled_ += static_cast<uint32_t>(chained_);
  if (signal || chain_waits_ || unsignaled_ >= depth_ / 4) {
    chain_[static_cast<size_t>(chained_ - 1)].send_flags |= IBV_SEND_SIGNALED;
    unsignaled_ = 0;
  }
  chained_ = 0;
  chain_waits_ = false;
  const int error = pair_->PostSends(&chain_[0]);
  if (error != 0) fault_->Set("posting requests", 0, error);
}

void VerbsSender::SendUpdate() {
  if (fault_->any() || Credits() == 0 || Room() < 2) return;
  std::byte* const header = memory_.headers + posted_ % depth_ * kVerbsHeaderBytes;
  WriteVerbsHeader(HeaderOf(nullptr, 0), header);
  AddRequest(IBV_WR_SEND_WITH_IMM, header, kVerbsHeaderBytes, {VerbsKind::kUpdate, 0});
  PostChain(false);
}

// A write of nothing, behind all other requests: it needs no receive and touches no memory.
void VerbsSender::Flush() {
  if (fault_->any() || unsignaled_ == 0 || Room() == 0) return;
  ibv_send_wr* const request = AddRequest(IBV_WR_RDMA_WRITE, nullptr, 0, {});
  request->num_sge = 0;
  request->wr.rdma.remote_addr = peer_address_;
  --messages_;
  PostChain(true);
}

void VerbsSender::TakeCompletion(uint32_t value) {
  const uint32_t count = (value - completed_) & VerbsHub::kMostValue;
  if (count > posted_ - completed_) return fault_->Set("a completion of a request that was not posted", value);
  completed_ += count;
}

void VerbsSender::TakeCredits(const VerbsHeader& header) {
  const uint64_t changed = header.released ^ peer_released_;
  if ((changed & ~at_peer_) != 0) return fault_->Set("a released slot that it does not have", changed);
  if (header.taken - peer_taken_ > messages_ - peer_taken_)
    return fault_->Set("a count of taken messages", header.taken);
  at_peer_ &= ~changed;
  peer_released_ = header.released;
  peer_taken_ = header.taken;
}

void VerbsSender::TakeFarewell(uint32_t received) {
  has_farewell_ = true;
  peer_received_ = received;
}

bool VerbsSender::IsDone(const Send& send) const {
  return Reached(completed_, static_cast<uint32_t>(send.cookie)) ||
         (has_farewell_ && Reached(peer_received_, static_cast<uint32_t>(send.cookie >> 32)));
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
  free_.push_back(static_cast<uint32_t>(static_cast<size_t>(send->data - SlotAt(0)) / stride_));
  send->code = code;  // Last: the request may be gone from here on.
}

}  // namespace annulus
