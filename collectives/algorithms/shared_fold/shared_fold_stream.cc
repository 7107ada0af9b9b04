// SharedFold's calls in streams, whose programs the device has already got: looks at their words and opens gates.
#include <algorithm>
#include <cstring>
#include <string>

#include "collectives/algorithms/shared_fold/shared_fold.h"

namespace annulus {
namespace {

// A rank that sleeps while its stream works looks at it again after an eighth of the time that has passed: what it
// notices late is little beside what it has waited for. The bounds are those of calls that wait for their stream to
// come to them (dispatcher_progress.cc).
constexpr Nanoseconds kShareOfWait = 8;
constexpr Nanoseconds kFirstPause = 20 * kMicrosecond;
constexpr Nanoseconds kLongestPause = 500 * kMicrosecond;

}  // namespace

Status SharedFold::CheckProgram() const {
  for (int rank = 0; rank < nranks_; ++rank) {
    const FoldAgreement::Word& word = ranks_.offers[static_cast<size_t>(rank)].in_stream;
    if (word.is_fold == 1 && word.number == program_.fold->number) continue;
    return {Code::kMismatch,
            "rank " + std::to_string(rank) + " made the call without a stream, or not in the order in which rank " +
                std::to_string(rank_) + " makes its large calls in streams",
            rank, 0};
  }
  return Status();
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
    if (fold.host_input != nullptr && fold.call->HasSaid(steps.came())) CopyInput();
    if (!fold.call->HasSaid(steps.ready())) return;
    own_.word = 1;
    if (program_.piece == 0) {
      StartHop(Stage::kOffers, &own_.offer, sizeof own_.offer);
    } else {
      StartHop(Stage::kPieceStarts, &own_.word, sizeof own_.word);
    }
  } else if (stage_ == Stage::kPieceFolds) {
    if (!fold.folds || fold.call->HasSaid(steps.folded())) StartHop(Stage::kPieceEnds, &own_.word, sizeof own_.word);
  } else if (fold.host_output == nullptr || fold.call->HasSaid(steps.out())) {
    if (fold.host_output != nullptr) CopyOutput();
    NextPiece();
  }
  if (stage_ == before) return;
  program_.asleep_since = 0;
  *moved = true;
}

// Looks again until the stream has it: then it does nothing.
void SharedFold::CopyInput() {
  const StreamFold& fold = *program_.fold;
  if (program_.is_copied) return;
  program_.is_copied = true;
  const size_t offset = program_.piece * fold.piece_bytes;
  const size_t bytes = std::min(fold.piece_bytes, fold.part_bytes - offset);
  for (size_t part = 0; part < static_cast<size_t>(fold.input_parts); ++part)
    std::memcpy(fold.staging + part * fold.piece_bytes, fold.host_input + part * fold.part_bytes + offset, bytes);
  fold.call->OpenGate(program_.steps().came());
}

void SharedFold::CopyOutput() {
  const StreamFold& fold = *program_.fold;
  const size_t offset = program_.piece * fold.piece_bytes;
  const size_t bytes = std::min(fold.piece_bytes, fold.part_bytes - offset);
  for (size_t part = 0; part < static_cast<size_t>(fold.output_parts); ++part)
    std::memcpy(fold.host_output + part * fold.part_bytes + offset, fold.staging + part * fold.piece_bytes, bytes);
  fold.call->OpenGate(program_.steps().out());
}

void SharedFold::NextPiece() {
  ++program_.piece;
  program_.is_copied = false;
  stage_ = program_.piece == program_.fold->pieces ? Stage::kDone : Stage::kPieceInput;
}

}  // namespace annulus
