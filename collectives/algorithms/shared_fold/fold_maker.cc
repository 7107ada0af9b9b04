#include "collectives/algorithms/shared_fold/fold_maker.h"

namespace annulus {
namespace {

using Kind = StreamStep::Kind;

}  // namespace

FoldMaker::FoldMaker(const FoldLayout& layout, const FoldCall& call)
    : layout_(layout),
      call_(call),
      element_bytes_(TypeBytes(call.type)),
      folds_(Reduces(call.kind) && layout.folds()) {}

size_t FoldMaker::ListsBytes() const {
  if (!Reduces(call_.kind)) return 0;
  return FoldAligned(MostFolds() * static_cast<size_t>(layout_.nranks()) * sizeof(std::byte*));
}

void FoldMaker::Make(const Target& target) {
  target_ = target;
  lists_ = reinterpret_cast<const std::byte**>(target.lists);
  StreamFold* const fold = target.fold;
  fold->pieces = pieces();
  fold->first_piece = target.first_piece;
  fold->folds = folds_;
  fold->has_host_input = has_host_input();
  fold->has_host_output = has_host_output();
  fold->host_inputs.clear();
  fold->host_outputs.clear();
  for (uint32_t piece = 0; piece < fold->pieces; ++piece) AddPiece(piece);
  target.program->last = PieceSteps(target.first_piece + fold->pieces - 1).out();
}

void FoldMaker::AddPiece(uint32_t piece) {
  StreamProgram* const program = target_.program;
  const PieceSteps steps(target_.first_piece + piece);
  piece_ = piece;
  half_ = (target_.pieces_before + piece) % 2 * layout_.piece_bytes;
  SetPiece(piece);
  if (target_.fold->has_host_input) {
    program->Add(Kind::kSay, steps.came());
    program->Add(Kind::kAwait, steps.came());
  }
  AddInputs();
  program->Add(Kind::kSay, steps.ready());
  if (folds_) {
    program->Add(Kind::kAwait, steps.ready());
    AddFolds();
    Launch();
    program->Add(Kind::kSay, steps.folded());
  }
  program->Add(Kind::kAwait, steps.folded());
  AddResults();
  if (!target_.fold->has_host_output) return;
  program->Add(Kind::kSay, steps.out());
  program->Add(Kind::kAwait, steps.out());
}

void FoldMaker::Launch() {
  if (folds_to_launch_ > 0) target_.program->Add(Kind::kFold, folds_to_launch_);
  folds_to_launch_ = 0;
}

void FoldMaker::AddInput(size_t offset, const std::byte* user, bool on_host, size_t staged, size_t bytes) {
  std::byte* const copy = target_.copies + staged;
  if (on_host) target_.fold->host_inputs.push_back({piece_, copy, user, bytes});
  target_.program->Copy(InMemoryOf(layout_.rank, offset), on_host ? copy : user, bytes, on_host);
}

void FoldMaker::AddFold(size_t offset, size_t count, int last) {
  SliceOp op;
  const int n = layout_.nranks();
  op.src = lists_;
  for (int k = 0; k < n; ++k) {
    const std::byte* const source = InMemoryOf((last + 1 + k) % n, offset);
    if (k < 2) op.inline_src[k] = source;
    *lists_++ = source;
  }
  op.dst[0] = InMemoryOf(layout_.rank, offset);
  op.num_sources = n;
  op.count = count;
  op.type = call_.type;
  op.op = call_.op;
  op.divisor = call_.op == ReduceOp::kAvg ? static_cast<uint32_t>(n) : 0;
  target_.program->folds.push_back(op);
  if (++folds_to_launch_ == StreamProgram::kMostFolds) Launch();
}

void FoldMaker::AddOutput(int rank, size_t offset, std::byte* user, bool on_host, size_t staged, size_t bytes) {
  std::byte* const copy = target_.copies + staged;
  if (on_host) target_.fold->host_outputs.push_back({piece_, user, copy, bytes});
  target_.program->Copy(on_host ? copy : user, InMemoryOf(rank, offset), bytes);
}

}  // namespace annulus
