#include "transport/verbs/rail/verbs_chain.h"

#include <arpa/inet.h>

#include "base/check.h"

namespace annulus {

ibv_send_wr* VerbsChain::Add(ibv_wr_opcode opcode, VerbsImmediate immediate, const VerbsPiece& first,
                             const VerbsPiece& second) {
  ANNULUS_CHECK(chained_ < kMost);
  const auto index = static_cast<size_t>(chained_++);
  ibv_send_wr& request = requests_[index];
  request = {};
  request.sg_list = pieces_[index].data();
  for (const VerbsPiece& piece : {first, second}) {
    if (piece.bytes == 0) continue;
    request.sg_list[request.num_sge++] = {reinterpret_cast<uint64_t>(piece.data), static_cast<uint32_t>(piece.bytes),
                                          piece.key};
  }
  chained_bytes_ += first.bytes + second.bytes;
  request.opcode = opcode;
  request.imm_data = htonl(immediate.Pack());
  request.wr_id = pair_->SendId(++posted_);
  const bool fits = first.bytes + second.bytes <= pair_->inline_bytes();
  if (opcode == IBV_WR_SEND_WITH_IMM && fits) request.send_flags = IBV_SEND_INLINE;
  if (index > 0) requests_[index - 1].next = &request;
  return &request;
}

int VerbsChain::HandOver() {
  unsignaled_ += static_cast<uint32_t>(chained_);
  if (waits_ || unsignaled_ >= depth_ / 4) {
    requests_[static_cast<size_t>(chained_ - 1)].send_flags |= IBV_SEND_SIGNALED;
    unsignaled_ = 0;
  }
  chained_ = 0;
  chained_bytes_ = 0;
  waits_ = false;
  ibv_send_wr* bad = nullptr;
  return pair_->PostSends(&requests_[0], &bad);
}

void VerbsChain::PostMarker() {
  if (!has_unsignaled() || chained_ > 0 || Room() == 0 || !pair_->exists()) return;
  (void)Add(IBV_WR_RDMA_WRITE, {}, {});
  AskForCompletion();
  (void)HandOver();  // A device that is gone refuses, and has failed anyway.
}

void VerbsChain::OnCompletion(uint32_t value) {
  const uint32_t count = (value - completed_) & VerbsHub::kMostValue;
  if (count > posted_ - completed_) return fault_->Set("a completion of a request that was not posted", value);
  completed_ += count;
}

}  // namespace annulus
