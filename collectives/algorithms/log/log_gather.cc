#include "collectives/algorithms/log/log_gather.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "collectives/algorithms/log/log_exchange.h"

namespace annulus {

LogGather::LogGather(int rank, int nranks, size_t largest_bytes, const Links* links, SlotMemory* staging)
    : Exchange(rank, nranks, links, LogSteps(nranks)),
      capacity_(largest_bytes),
      memory_(staging, static_cast<size_t>(nranks) * largest_bytes),
      blocks_(memory_.data()),
      fold_sources_(nranks) {}

size_t LogGather::MemoryBytes(int nranks, size_t largest_bytes) {
  return sizeof(LogGather) + static_cast<size_t>(nranks) * (largest_bytes + sizeof(void*)) +
         SendsBytes(LogSteps(nranks));
}

void LogGather::Begin() {
  bytes_ = has_data() ? work_->call.count * work_->element_bytes : 0;
  ANNULUS_CHECK(bytes_ <= capacity_);
  stage_ = has_data() ? Stage::kLoad : Stage::kSwap;
  step_ = chunk_ = 0;
}

Status LogGather::Step(bool* moved) {
  switch (stage_) {
    case Stage::kLoad:
      return Load(moved);
    case Stage::kSwap:
      return SwapBlocks(moved);
    case Stage::kFold:
      return Fold(moved);
    case Stage::kFinish:
      if (!SendsComplete()) return Status();
      stage_ = Stage::kDone;
      *moved = true;
      return Status();
    case Stage::kDone:
      return Status();
  }
  return Status();
}

// Data scaled here is not scaled again in the fold.
Status LogGather::Load(bool* moved) {
  SliceOp op = Copy(blocks_, work_->input.data, work_->call.count);
  op.custom = work_->custom;
  if (op.custom.scales) op.scaled_source = 0;
  bool loaded = false;
  ANNULUS_RETURN_IF_ERROR(AdvanceOp(op, work_->input.queue, &loaded));
  if (!loaded) return Status();
  *moved = true;
  stage_ = Stage::kSwap;
  return Status();
}

size_t LogGather::SentBytes() const {
  const int distance = 1 << step_;
  return static_cast<size_t>(std::min(distance, nranks_ - distance)) * bytes_;
}

Status LogGather::SwapBlocks(bool* moved) {
  const int distance = 1 << step_;
  const int to = (rank_ + distance) % nranks_;
  const int from = (rank_ + nranks_ - distance) % nranks_;
  const auto pack = [this](std::byte* slot) {
    if (bytes_ > 0) std::memcpy(slot, blocks_, SentBytes());
    return SentBytes();
  };
  bool complete = false;
  ANNULUS_RETURN_IF_ERROR(Swap(to, from, step_, SentBytes(), pack, moved, &complete));
  if (!complete) return Status();
  if (bytes_ > 0) std::memcpy(blocks_ + static_cast<size_t>(distance) * bytes_, received().data, SentBytes());
  FinishReceive();
  *moved = true;
  if (1 << ++step_ >= nranks_) stage_ = has_data() ? Stage::kFold : Stage::kFinish;
  return Status();
}

Status LogGather::Fold(bool* moved) {
  const size_t begin = ChunkBegin(work_->call.count, nranks_, chunk_) * work_->element_bytes;
  for (int i = 0; i < nranks_ && !submitted(); ++i) fold_sources_[i] = BlockOf((chunk_ + 1 + i) % nranks_) + begin;
  SliceOp op = Copy(work_->output.data + begin, fold_sources_[0], ChunkElements(work_->call.count, nranks_, chunk_));
  op.num_sources = nranks_;
  op.src = fold_sources_.data();
  op.inline_src[1] = fold_sources_[1];
  op.divisor = work_->divisor;
  op.custom = work_->custom;
  op.custom.scales = false;
  bool folded = false;
  ANNULUS_RETURN_IF_ERROR(AdvanceOp(op, work_->output.queue, &folded));
  if (!folded) return Status();
  *moved = true;
  if (++chunk_ == nranks_) stage_ = Stage::kFinish;
  return Status();
}

}  // namespace annulus
