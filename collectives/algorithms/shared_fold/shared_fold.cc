#include "collectives/algorithms/shared_fold/shared_fold.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "base/check.h"
#include "collectives/algorithms/slice_tag.h"
#include "collectives/algorithms/two_hop/two_hop_schedule.h"

namespace annulus {
SharedFold::SharedFold(int rank, const AlgorithmJob& job, const Links* links)
    : rank_(rank), nranks_(job.nranks()), hop_(rank, nranks_, links, /*counts=*/false) {
  const auto n = static_cast<size_t>(nranks_);
  ranks_.offers.resize(n);
  ranks_.programs.resize(n);
  ranks_.inputs.resize(n);
  ranks_.outputs.resize(n);
  ranks_.words.resize(n);
  ranks_.findings.resize(n);
  folds_.of = std::vector<Fold>(n);
  for (int k = 1; k < nranks_; ++k) endpoints_.push_back(links->At((rank + k) % nranks_, 0));
  folds_.chunks.reserve(n);
}

size_t SharedFold::MemoryBytes(int nranks) {
  constexpr size_t kPerRank = sizeof(Endpoint*) + sizeof(Offer) + sizeof(ProgramOffer) + sizeof(FoldAgreement::Word) +
                              sizeof(Finding) + sizeof(int) + 2 * sizeof(std::byte*) + sizeof(Fold);
  return sizeof(SharedFold) + static_cast<size_t>(nranks) * kPerRank;
}

void SharedFold::Start(const ScheduleParams& params, const Work* work) {
  Release();
  params_ = params;
  work_ = work;
  saying_ = *work;
  program_ = {work->fold != nullptr && work->fold->pieces > 0 ? work->fold : nullptr, 0};
  if (program_.fold != nullptr && !program_.fold->is_exchange()) program_.pieces = program_.fold->pieces;
  // What the tags of such calls tell of is one part, and what the ranks say concerns all.
  if (HasVariableParts(params_.kind)) saying_.call.count = 0;
  own_.queue = work->input.queue;
  own_.shared = own_.queue != nullptr && own_.queue == work->output.queue ? own_.queue->shared() : nullptr;
  own_.offer = MakeOffer();
  if (hop_.most_bytes() < sizeof own_.offer) {
    if (work->fold != nullptr) work->fold->agreement->Never();
    return Decline();
  }
  if (program_.fold != nullptr) {
    own_.program = MakeProgramOffer();
    stage_ = Stage::kPieceInput;
    return;
  }
  StartHop(Stage::kOffers, &own_.offer, sizeof own_.offer);
}

SharedFold::Offer SharedFold::MakeOffer() {
  Offer offer;
  if (work_->fold != nullptr) offer.in_stream = work_->fold->agreement->Say(work_->fold->number);
  if (own_.shared == nullptr || work_->custom.scales || work_->custom.user != nullptr) return offer;
  own_.device = own_.shared->Export(work_->input.data, InputBytes(), &offer.input);
  const int other = own_.shared->Export(work_->output.data, OutputBytes(), &offer.output);
  const ReduceOp op = Reduces(params_.kind) ? work_->op : ReduceOp::kSum;
  offer.is_shared =
      own_.device >= 0 && other == own_.device && own_.shared->CanReduce(own_.device, work_->type, op) ? 1 : 0;
  return offer;
}

void SharedFold::StartHop(Stage stage, const void* data, uint32_t bytes) {
  stage_ = stage;
  saying_.input = ConstBuffer(static_cast<const std::byte*>(data));
  hop_.Start(&saying_, bytes, program_.fold != nullptr ? kProgramSlice : 0);
}

Status SharedFold::Hop(bool* moved, bool* is_over) {
  ANNULUS_RETURN_IF_ERROR(hop_.Progress(moved));
  const bool has_left = hop_.Flush();
  *is_over = hop_.done() && has_left;
  return Status();
}

Status SharedFold::Advance(bool* moved) {
  if (done()) return Status();
  if (stage_ == Stage::kFolds) ANNULUS_RETURN_IF_ERROR(AdvanceFolds(moved));
  FollowStream(moved);
  if (AwaitsDevice() || done()) return Status();
  bool is_over = false;
  ANNULUS_RETURN_IF_ERROR(Hop(moved, &is_over));
  if (!is_over) return Status();
  *moved = true;
  return EndHop();
}

Status SharedFold::EndHop() {
  switch (stage_) {
    case Stage::kOffers:
      return EndOffers();
    case Stage::kFinds:
      EndFinds();
      return Status();
    case Stage::kSends:
      hop_.PopAll();
      ranks_.have_sent = true;
      StartFinds();
      return Status();
    case Stage::kPieceStarts:
      EndPieceStarts();
      return Status();
    case Stage::kPieceEnds:
      hop_.PopAll();
      program_.fold->call->OpenGate(program_.steps().folded());
      stage_ = Stage::kPieceOutput;
      return Status();
    default:
      hop_.PopAll();
      Release();
      stage_ = Stage::kDone;
      return Status();
  }
}

Status SharedFold::EndOffers() {
  if (program_.fold != nullptr) return EndProgramOffers();
  ranks_.offers[static_cast<size_t>(rank_)] = own_.offer;
  for (size_t k = 0; k < endpoints_.size(); ++k) {
    const size_t peer = (static_cast<size_t>(rank_) + 1 + k) % ranks_.offers.size();
    std::memcpy(&ranks_.offers[peer], hop_.data(k), sizeof(Offer));
  }
  hop_.PopAll();
  if (work_->fold != nullptr) {
    std::transform(ranks_.offers.begin(), ranks_.offers.end(), ranks_.words.begin(), std::mem_fn(&Offer::in_stream));
    work_->fold->agreement->Hear(work_->fold->number, ranks_.words);
  }
  if (!std::ranges::all_of(ranks_.offers, [](const Offer& offer) { return offer.is_shared == 1; })) {
    Decline();
    return Status();
  }
  FindFolds();
  ranks_.have_sent = false;
  StartFinds();
  return Status();
}

void SharedFold::StartFinds() {
  own_.finding = FindBuffers();
  StartHop(Stage::kFinds, &own_.finding, sizeof own_.finding);
}

void SharedFold::EndFinds() {
  ranks_.findings[static_cast<size_t>(rank_)] = own_.finding;
  for (size_t k = 0; k < endpoints_.size(); ++k) {
    const size_t peer = (static_cast<size_t>(rank_) + 1 + k) % ranks_.findings.size();
    std::memcpy(&ranks_.findings[peer], hop_.data(k), sizeof(Finding));
  }
  hop_.PopAll();
  const auto may_have = [&](const Finding& each) {
    return each.has == Finding::Has::kAll || (each.has == Finding::Has::kLacks && !ranks_.have_sent);
  };
  if (!std::ranges::all_of(ranks_.findings, may_have)) return Decline();
  if (std::ranges::any_of(ranks_.findings, [](const Finding& each) { return each.lacks != 0; })) {
    own_.word = SendFiles() ? 1 : 0;
    return StartHop(Stage::kSends, &own_.word, sizeof own_.word);
  }
  folds_.submitted = 0;
  for (const int chunk : folds_.chunks) MakeFold(chunk);
  stage_ = Stage::kFolds;
}

void SharedFold::MakeFold(int chunk) {
  ScheduleParams params = params_;
  params.rank = chunk;
  params.slice_bytes = std::max(InputBytes(), OutputBytes()) + params.element_bytes;  // One slice.
  Fold& fold = folds_.of[static_cast<size_t>(chunk)];
  Step& step = fold.step;
  const bool is_there = TwoHopSchedule(params, 1).At(0, &step);
  ANNULUS_CHECK(is_there);
  SliceOp& op = fold.op;
  op = SliceOp();
  int sources = 0;
  const bool reduces = Reduces(params_.kind);
  for (int k = 0; k < (reduces ? nranks_ : 1); ++k) {
    const int rank = reduces ? (step.first_rank + k) % nranks_ : chunk;
    fold.sources[static_cast<size_t>(sources++)] = ranks_.inputs[static_cast<size_t>(rank)] + step.input_offset;
  }
  int destinations = 0;
  for (int rank = 0; rank < nranks_; ++rank) {
    if (IsReduceScatter(params_.kind) && rank != chunk) continue;
    fold.destinations[static_cast<size_t>(destinations++)] =
        ranks_.outputs[static_cast<size_t>(rank)] + step.output_offset;
  }
  op.src = fold.sources.data();
  op.inline_src[0] = fold.sources[0];
  op.inline_src[1] = fold.sources[1];
  op.num_sources = sources;
  op.dst[0] = fold.destinations[0];
  op.dst[1] = destinations > 1 ? fold.destinations[1] : nullptr;
  op.more = fold.destinations.data() + 2;
  op.num_more = std::max(destinations - 2, 0);
  op.count = step.bytes / params_.element_bytes;
  op.type = work_->type;
  op.op = reduces ? work_->op : ReduceOp::kSum;
  op.divisor = reduces ? work_->divisor : 0;
  op.device = own_.device;
}

// All are submitted before the first is looked for, so that they share a launch.
Status SharedFold::AdvanceFolds(bool* moved) {
  for (; folds_.submitted < folds_.chunks.size(); ++folds_.submitted) {
    Fold& fold = folds_.of[static_cast<size_t>(folds_.chunks[folds_.submitted])];
    if (fold.op.count == 0) continue;
    const Nanoseconds clock = work_->TraceClock();
    Status submitted = fold.submission.Submit(own_.queue, fold.op);
    if (submitted.would_block()) break;
    ANNULUS_RETURN_IF_ERROR(std::move(submitted));
    if (clock != 0) work_->TraceSlice(TraceEvent::Kind::kReduced, fold.step, 0, -1, fold.step.bytes, clock);
    *moved = true;
  }
  bool pending = folds_.submitted < folds_.chunks.size();
  for (const int chunk : folds_.chunks) {
    Submission& submission = folds_.of[static_cast<size_t>(chunk)].submission;
    if (submission.pending()) ANNULUS_RETURN_IF_ERROR(submission.Poll());
    pending |= submission.pending();
  }
  if (pending) return Status();
  *moved = true;
  own_.word = 1;
  StartHop(Stage::kEnds, &own_.word, sizeof own_.word);
  return Status();
}

void SharedFold::Decline() {
  Release();
  stage_ = Stage::kDeclined;
}

void SharedFold::Release() {
  if (own_.shared != nullptr) own_.shared->Release();
  own_.shared = nullptr;
}

}  // namespace annulus
