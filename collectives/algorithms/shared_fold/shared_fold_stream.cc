// SharedFold's calls in streams, whose programs the device has already got: looks at their words and opens gates.
#include <algorithm>
#include <cstring>
#include <string>

#include "collectives/algorithms/shared_fold/shared_fold.h"
#include "collectives/control/arbiter_text.h"

namespace annulus {
namespace {

// A rank that sleeps while its stream works looks at it again after an eighth of the time that has passed: what it
// notices late is little beside what it has waited for. The bounds are those of calls that wait for their stream to
// come to them (dispatcher_progress.cc).
constexpr Nanoseconds kShareOfWait = 8;
constexpr Nanoseconds kFirstPause = 20 * kMicrosecond;
constexpr Nanoseconds kLongestPause = 500 * kMicrosecond;

}  // namespace

SharedFold::ProgramOffer SharedFold::MakeProgramOffer() const {
  const StreamFold& fold = *program_.fold;
  ProgramOffer offer;
  offer.in_stream = own_.offer.in_stream;
  if (fold.is_exchange()) {
    std::ranges::copy(fold.sends, offer.sends.begin());
    offer.has_more = program_.HasData(1) ? 1 : 0;
  } else if (HasVariableParts(params_.kind)) {
    offer.own_count = PartOf(rank_);
  }
  return offer;
}

Status SharedFold::EndProgramOffers() {
  ranks_.programs[static_cast<size_t>(rank_)] = own_.program;
  for (size_t k = 0; k < endpoints_.size(); ++k) {
    const size_t peer = (static_cast<size_t>(rank_) + 1 + k) % ranks_.programs.size();
    std::memcpy(&ranks_.programs[peer], hop_.data(k), sizeof(ProgramOffer));
  }
  hop_.PopAll();
  ANNULUS_RETURN_IF_ERROR(CheckProgram());
  if (program_.fold->is_exchange()) {
    EndExchange(std::ranges::any_of(ranks_.programs, [](const ProgramOffer& each) { return each.has_more != 0; }));
    return Status();
  }
  program_.fold->call->OpenGate(program_.steps().ready());
  stage_ = Stage::kPieceFolds;
  return Status();
}

void SharedFold::EndPieceStarts() {
  bool more = own_.word == kHasMore;
  for (size_t k = 0; k < endpoints_.size(); ++k) more |= static_cast<uint8_t>(*hop_.data(k)) == kHasMore;
  hop_.PopAll();
  if (program_.fold->is_exchange()) return EndExchange(more);
  program_.fold->call->OpenGate(program_.steps().ready());
  stage_ = Stage::kPieceFolds;
}

// An even number of pieces has its last one in the half in which the next call begins, so one more hop follows: before
// it, the stream has come to where it has all results. Of an odd number, who begins the next call says that.
void SharedFold::EndExchange(bool more) {
  if (!more && program_.pieces == UINT32_MAX) program_.pieces = (program_.piece + 1) | 1;
  if (!program_.HasData(program_.piece)) return NextPiece();
  program_.fold->call->OpenGate(program_.steps().folded());
  stage_ = Stage::kPieceOutput;
}

Status SharedFold::CheckProgram() const {
  for (int rank = 0; rank < nranks_; ++rank) {
    const FoldAgreement::Word& word = ranks_.programs[static_cast<size_t>(rank)].in_stream;
    if (word.is_fold == 1 && word.number == program_.fold->number) {
      ANNULUS_RETURN_IF_ERROR(CheckPart(rank));
      continue;
    }
    return {Code::kMismatch,
            "rank " + std::to_string(rank) + " made the call without a stream, or not in the order in which rank " +
                std::to_string(rank_) + " makes its large calls in streams",
            rank, 0};
  }
  return Status();
}

// Where each rank's own part has the size that all others take it for, all take all parts for the same. Of an exchange,
// whoever takes a part looks.
Status SharedFold::CheckPart(int rank) const {
  if (!HasVariableParts(params_.kind)) return Status();
  const ProgramOffer& said = ranks_.programs[static_cast<size_t>(rank)];
  const StreamFold& fold = *program_.fold;
  const uint64_t there = fold.is_exchange() ? said.sends[static_cast<size_t>(rank_)] : said.own_count;
  const uint64_t here = fold.is_exchange() ? fold.takes[static_cast<size_t>(rank)] : PartOf(rank);
  if (there == here) return Status();
  return {Code::kMismatch,
          "rank " + std::to_string(rank) + " called " + CallName(work_->call) + " with a part of " +
              std::to_string(there) + " elements, for which this rank has " + std::to_string(here),
          rank, 0};
}

uint64_t SharedFold::PartOf(int rank) const {
  const Part* const parts = Reduces(params_.kind) ? params_.input_parts : params_.output_parts;
  return parts[rank].elements;
}

// Nothing tells when a stream has written a word. Links are left alone meanwhile: what has come over them is for later.
bool SharedFold::Arm() {
  program_.look_at = kNoDeadline;
  if (!AwaitsStream()) return Runner::Arm();
  const Nanoseconds now = Now();
  if (program_.asleep_since == 0) program_.asleep_since = now;
  program_.look_at = now + std::clamp((now - program_.asleep_since) / kShareOfWait, kFirstPause, kLongestPause);
  return true;
}

void SharedFold::FollowStream(bool* moved) {
  if (!AwaitsStream()) return;
  const Stage before = stage_;
  const StreamFold& fold = *program_.fold;
  const PieceSteps steps = program_.steps();
  if (stage_ == Stage::kPieceInput) {
    if (fold.has_host_input && fold.call->HasSaid(steps.came())) CopyInput();
    if (!fold.call->HasSaid(steps.ready())) return;
    own_.word = fold.is_exchange() && program_.HasData(program_.piece + 1) ? kHasMore : 1;
    if (program_.piece == 0) {
      StartHop(Stage::kOffers, &own_.program, sizeof own_.program);
    } else {
      StartHop(Stage::kPieceStarts, &own_.word, sizeof own_.word);
    }
  } else if (stage_ == Stage::kPieceFolds) {
    if (!fold.folds || fold.call->HasSaid(steps.folded())) StartHop(Stage::kPieceEnds, &own_.word, sizeof own_.word);
  } else if (!fold.has_host_output || fold.call->HasSaid(steps.out())) {
    if (fold.has_host_output) CopyOutput();
    NextPiece();
  }
  if (stage_ == before) return;
  program_.asleep_since = 0;
  *moved = true;
}

// Looks again until the stream has it: then it does nothing.
void SharedFold::CopyInput() {
  if (program_.is_copied) return;
  program_.is_copied = true;
  CopyPiece(program_.fold->host_inputs, &program_.inputs);
  program_.fold->call->OpenGate(program_.steps().came());
}

void SharedFold::CopyOutput() {
  CopyPiece(program_.fold->host_outputs, &program_.outputs);
  program_.fold->call->OpenGate(program_.steps().out());
}

void SharedFold::CopyPiece(const std::vector<FoldHostCopy>& copies, size_t* next) const {
  for (; *next < copies.size() && copies[*next].piece == program_.piece; ++*next)
    std::memcpy(copies[*next].to, copies[*next].from, copies[*next].bytes);
}

void SharedFold::NextPiece() {
  ++program_.piece;
  program_.is_copied = false;
  stage_ = program_.piece == program_.pieces ? Stage::kDone : Stage::kPieceInput;
}

}  // namespace annulus
