#include "collectives/algorithms/shared_fold/fold_tensors.h"

#include <algorithm>

#include "collectives/core/schedule.h"

namespace annulus {

FoldTensors::FoldTensors(const FoldLayout& layout, const FoldCall& call)
    : FoldMaker(layout, call), tensors_(call.shape->tensors) {
  for (const FoldTensor& tensor : tensors_) {
    has_host_input_ |= tensor.has_host_input;
    has_host_output_ |= tensor.has_host_output;
  }
  for (Place at; at.tensor < tensors_.size(); ++pieces_) at = EachRun(at, [](const Run& /*run*/) {});
}

template <class Use>
FoldTensors::Place FoldTensors::EachRun(Place from, Use use) const {
  for (size_t offset = 0; from.tensor < tensors_.size(); ++from.tensor, from.element = 0) {
    const size_t room = (layout_.piece_bytes - offset) / element_bytes_;
    if (room == 0) break;
    const FoldTensor& tensor = tensors_[from.tensor];
    const size_t end = std::min(tensor.count, from.element + room);
    use(Run{&tensor, from.element, end, offset});
    if (end < tensor.count) return {from.tensor, end};
    // Both are multiples of the alignment, or the piece is full.
    offset = std::min(offset + FoldAligned((end - from.element) * element_bytes_), layout_.piece_bytes);
  }
  return from;
}

// Pieces are begun in their order.
void FoldTensors::SetPiece(uint32_t piece) {
  piece_ = piece == 0 ? Place() : next_;
  next_ = EachRun(piece_, [](const Run& /*run*/) {});
}

void FoldTensors::AddInputs() {
  EachRun(piece_, [&](const Run& run) {
    AddInput(run.offset, run.tensor->input + run.begin * element_bytes_, run.tensor->has_host_input, run.offset,
             (run.end - run.begin) * element_bytes_);
  });
}

void FoldTensors::AddFolds() {
  EachRun(piece_, [&](const Run& run) {
    for (int chunk = 0; chunk < layout_.nranks(); ++chunk) {
      if (layout_.folders[static_cast<size_t>(chunk)] != layout_.rank) continue;
      const auto number = static_cast<uint32_t>(chunk);
      const size_t first = ChunkBegin(run.tensor->count, layout_.nranks(), number);
      const size_t begin = std::max(first, run.begin);
      const size_t end = std::min(first + ChunkElements(run.tensor->count, layout_.nranks(), number), run.end);
      if (begin < end) AddFold(run.offset + (begin - run.begin) * element_bytes_, end - begin, chunk);
    }
  });
}

// Neighbours that one rank has folded are one copy.
void FoldTensors::AddResults() {
  EachRun(piece_, [&](const Run& run) {
    int folder = layout_.folders.front();
    size_t begin = run.begin;
    for (int chunk = 1; chunk < layout_.nranks(); ++chunk) {
      const int own = layout_.folders[static_cast<size_t>(chunk)];
      const size_t first = ChunkBegin(run.tensor->count, layout_.nranks(), static_cast<uint32_t>(chunk));
      if (own == folder || first >= run.end) continue;
      if (first > begin) AddResult(run, folder, begin, first);
      begin = std::max(begin, first);
      folder = own;
    }
    AddResult(run, folder, begin, run.end);
  });
}

void FoldTensors::AddResult(const Run& run, int rank, size_t begin, size_t end) {
  const size_t offset = run.offset + (begin - run.begin) * element_bytes_;
  AddOutput(rank, offset, run.tensor->output + begin * element_bytes_, run.tensor->has_host_output, offset,
            (end - begin) * element_bytes_);
}

}  // namespace annulus
