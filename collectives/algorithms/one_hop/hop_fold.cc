#include "collectives/algorithms/one_hop/hop_fold.h"

#include <algorithm>

namespace annulus {

void HopFold::Start(const Schedule* schedule, Range range, const Work* work) {
  schedule_ = schedule;
  first_ = range.first;
  folds_ = range.steps;
  work_ = work;
  fold_ = -1;
  op_ = SliceOp();
  op_.custom = work->custom;
  op_.src = sources_.data();
  op_.num_sources = nranks_;
  op_.type = work->type;
  op_.op = work->op;
}

void HopFold::StartWhole(const Part& part, const Work* work) {
  Start(nullptr, {0, 1}, work);
  step_ = Step();
  step_.kind = Step::Kind::kFold;
  step_.finish = true;
  step_.input_offset = part.begin * work->element_bytes;
  step_.bytes = part.elements * work->element_bytes;
  op_.count = part.elements;
  op_.divisor = work->divisor;
}

void HopFold::FoldAll() {
  if (op_.count == 0) return;
  const Nanoseconds clock = work_->TraceClock();
  op_.dst[0] = work_->output.data;
  op_.inline_src[0] = work_->input.data + step_.input_offset;
  op_.inline_src[1] = arrivals_[1 - rank_];
  RunOnHost(op_);
  Trace(step_.bytes, clock);
}

Status HopFold::Advance(bool* moved) {
  const auto submit = [this](size_t begin, size_t* end, Submission* piece) {
    const Work::Place input = work_->InputAt(step_.input_offset + begin);
    const Work::Place output = work_->OutputAt(step_.output_offset + begin);
    *end = begin + std::min({*end - begin, input.bytes, output.bytes});
    if (step_.kind == Step::Kind::kRelay && input.data == output.data) return Status();
    MakeOp(input, output, begin, *end - begin);
    const Nanoseconds clock = work_->TraceClock();
    ANNULUS_RETURN_IF_ERROR(piece->Submit(QueueFor(output.queue, input.queue), op_));
    Trace(*end - begin, clock);
    return Status();
  };
  while (fold_ < folds_) {
    if (fold_ >= 0) {
      ANNULUS_RETURN_IF_ERROR(folded_.Advance(submit, moved));
      if (!folded_.done()) return Status();
    }
    if (++fold_ == folds_) break;
    const bool folds = is_single() || schedule_->At(first_ + static_cast<size_t>(fold_), &step_);
    folded_.Reset(folds ? step_.bytes : 0);
  }
  return Status();
}

// Makes op_ the current fold's operation on `bytes` that begin at `begin` of its step.
void HopFold::MakeOp(const Work::Place& input, const Work::Place& output, size_t begin, size_t bytes) {
  op_.count = bytes / work_->element_bytes;
  op_.dst[0] = const_cast<std::byte*>(output.data);
  if (step_.kind == Step::Kind::kRelay) {
    op_.num_sources = 1;
    op_.inline_src[0] = input.data;
    return;
  }
  for (int k = 0, rank = step_.first_rank; k < nranks_; ++k, rank = rank + 1 < nranks_ ? rank + 1 : 0) {
    sources_[k] = rank == rank_ ? input.data : arrivals_[rank] + step_.arrival_offset + begin;
    if (rank == rank_ && work_->custom.scales) op_.scaled_source = k;
  }
  op_.inline_src[0] = sources_[0];
  op_.inline_src[1] = sources_[1];
  op_.divisor = step_.finish ? work_->divisor : 0;
}

void HopFold::Trace(size_t bytes, Nanoseconds clock) const {
  if (clock != 0) work_->TraceSlice(TraceEvent::Kind::kReduced, step_, 0, -1, bytes, clock);
}

}  // namespace annulus
