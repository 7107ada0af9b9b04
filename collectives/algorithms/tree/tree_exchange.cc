#include "collectives/algorithms/tree/tree_exchange.h"

#include <cstring>

#include "base/check.h"

namespace annulus {
namespace {

// Messages on a link of the tree.
constexpr int kUp = 0;
constexpr int kDown = 1;

size_t RoundUp(size_t bytes) {
  return (bytes + SlotMemory::kAlignment - 1) / SlotMemory::kAlignment * SlotMemory::kAlignment;
}

}  // namespace

TreeExchange::TreeExchange(int rank, int nranks, size_t largest_bytes, const Links* links, SlotMemory* staging)
    : Exchange(rank, nranks, links, static_cast<int>(TreeChildren(rank, nranks).size()) + 1),
      parent_(TreeParent(rank)),
      children_(TreeChildren(rank, nranks)),
      stride_(RoundUp(largest_bytes)),
      memory_(staging, (children_.size() + 1) * stride_),
      result_(memory_.data()),
      sources_(children_.size() + 1) {}

size_t TreeExchange::MemoryBytes(int nranks, size_t largest_bytes) {
  const size_t children = TreeChildren(0, nranks).size();  // No rank has more.
  return sizeof(TreeExchange) + (children + 1) * (RoundUp(largest_bytes) + sizeof(int) + sizeof(std::byte*)) +
         SendsBytes(static_cast<int>(children) + 1);
}

void TreeExchange::Begin() {
  bytes_ = has_data() ? work_->call.count * work_->element_bytes : 0;
  ANNULUS_CHECK(bytes_ <= stride_);
  Enter(children_.empty() ? Stage::kFold : Stage::kGather);
}

void TreeExchange::Enter(Stage stage) {
  stage_ = stage;
  child_ = 0;
}

Status TreeExchange::Step(bool* moved) {
  switch (stage_) {
    case Stage::kGather:
      return Gather(moved);
    case Stage::kFold:
      return Fold(moved);
    case Stage::kSendUp:
      return SendUp(moved);
    case Stage::kReceiveDown:
      return ReceiveDown(moved);
    case Stage::kSendDown:
      return SendDown(moved);
    case Stage::kStore:
      return Store(moved);
    case Stage::kFinish:
      if (!SendsComplete()) return Status();
      Enter(Stage::kDone);
      *moved = true;
      return Status();
    case Stage::kDone:
      return Status();
  }
  return Status();
}

// Receives in the order of ranks: a child with more ranks below it finishes later anyway.
Status TreeExchange::Gather(bool* moved) {
  bool complete = false;
  ANNULUS_RETURN_IF_ERROR(Receive(children_[child_], kUp, bytes_, moved, &complete));
  if (!complete) return Status();
  if (bytes_ > 0) std::memcpy(ArrivalOf(child_), received().data, bytes_);
  FinishReceive();
  *moved = true;
  if (++child_ == children_.size()) Enter(Stage::kFold);
  return Status();
}

Status TreeExchange::Fold(bool* moved) {
  if (has_data()) {
    if (!submitted()) sources_[0] = work_->input.data;
    for (size_t i = 0; i < children_.size() && !submitted(); ++i) sources_[i + 1] = ArrivalOf(i);
    SliceOp op = Copy(result_, sources_[0], work_->call.count);
    op.num_sources = static_cast<int>(sources_.size());
    op.src = sources_.data();
    if (sources_.size() > 1) op.inline_src[1] = sources_[1];
    op.custom = work_->custom;
    if (op.custom.scales) op.scaled_source = 0;
    op.divisor = parent_ < 0 ? work_->divisor : 0;
    bool folded = false;
    ANNULUS_RETURN_IF_ERROR(AdvanceOp(op, work_->input.queue, &folded));
    if (!folded) return Status();
  }
  *moved = true;
  Enter(parent_ < 0 ? Stage::kSendDown : Stage::kSendUp);
  return Status();
}

Status TreeExchange::SendUp(bool* moved) {
  const auto pack = [this](std::byte* to) {
    if (bytes_ > 0) std::memcpy(to, result_, bytes_);
    return bytes_;
  };
  bool posted = false;
  ANNULUS_RETURN_IF_ERROR(Post(parent_, kUp, pack, moved, &posted));
  if (!posted) return Status();
  Enter(Stage::kReceiveDown);
  return Status();
}

Status TreeExchange::ReceiveDown(bool* moved) {
  bool complete = false;
  ANNULUS_RETURN_IF_ERROR(Receive(parent_, kDown, bytes_, moved, &complete));
  if (!complete) return Status();
  if (bytes_ > 0) std::memcpy(result_, received().data, bytes_);
  FinishReceive();
  *moved = true;
  Enter(Stage::kSendDown);
  return Status();
}

// Sends first to the child with the longest path below it.
Status TreeExchange::SendDown(bool* moved) {
  if (child_ == children_.size()) {
    Enter(has_data() ? Stage::kStore : Stage::kFinish);
    *moved = true;
    return Status();
  }
  const int child = children_[children_.size() - 1 - child_];
  const auto pack = [this](std::byte* to) {
    if (bytes_ > 0) std::memcpy(to, result_, bytes_);
    return bytes_;
  };
  bool posted = false;
  ANNULUS_RETURN_IF_ERROR(Post(child, kDown, pack, moved, &posted));
  if (!posted) return Status();
  ++child_;
  return Status();
}

Status TreeExchange::Store(bool* moved) {
  bool stored = false;
  ANNULUS_RETURN_IF_ERROR(
      AdvanceOp(Copy(work_->output.data, result_, work_->call.count), work_->output.queue, &stored));
  if (!stored) return Status();
  *moved = true;
  Enter(Stage::kFinish);
  return Status();
}

}  // namespace annulus
