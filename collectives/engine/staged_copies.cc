#include "collectives/engine/staged_copies.h"

namespace annulus {

void StagedCopies::Start(DomainQueue* queue, std::span<const StreamCopy> copies, Direction direction) {
  queue_ = queue;
  copies_ = copies;
  direction_ = direction;
  begun_ = ended_ = 0;
}

Status StagedCopies::Submit(const StreamCopy& copy, Submission* submission) {
  const bool is_to_device = direction_ == Direction::kToDevice;
  SliceOp op;
  op.dst[0] = is_to_device ? copy.buffer : copy.staged;
  op.inline_src[0] = is_to_device ? copy.staged : copy.buffer;
  op.num_sources = 1;
  op.count = copy.bytes;
  op.type = DataType::kUint8;
  return submission->Submit(queue_, op);
}

Status StagedCopies::Progress(bool* moved) {
  for (; begun_ < copies_.size() && begun_ - ended_ < kMostPending; ++begun_) {
    Status status = Submit(copies_[begun_], &pending_[begun_ % kMostPending]);
    if (status.would_block()) break;
    ANNULUS_RETURN_IF_ERROR(std::move(status));
    *moved = true;
  }
  for (; ended_ < begun_; ++ended_) {
    Submission& oldest = pending_[ended_ % kMostPending];
    // A device that does a copy at once has nothing pending.
    if (oldest.pending()) ANNULUS_RETURN_IF_ERROR(oldest.Poll());
    if (oldest.pending()) break;
    *moved = true;
  }
  return Status();
}

}  // namespace annulus
