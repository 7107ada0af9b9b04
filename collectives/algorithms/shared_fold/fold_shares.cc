#include "collectives/algorithms/shared_fold/fold_shares.h"

#include <algorithm>

namespace annulus {
namespace {

bool IsOnHost(const FoldRun& run) { return run.on_host; }

}  // namespace

// A share is rounded up to an element, and to where the next one may begin.
FoldShares::FoldShares(const FoldLayout& layout, const FoldCall& call) : FoldMaker(layout, call), shape_(*call.shape) {
  const size_t rounding = shape_.parts.size() * (element_bytes_ + StreamCalls::kAlignment);
  const size_t most = layout.piece_bytes - rounding;
  pieces_ = static_cast<uint32_t>((shape_.elements() * element_bytes_ + most - 1) / most);
}

size_t FoldShares::CopiesBytes() const {
  if (!has_host_input() && !has_host_output()) return 0;
  size_t bytes = 0;
  for (const size_t elements : shape_.parts) bytes += FoldAligned((elements + pieces_ - 1) / pieces_ * element_bytes_);
  return bytes;
}

bool FoldShares::has_host_input() const { return std::ranges::any_of(shape_.inputs, IsOnHost); }

bool FoldShares::has_host_output() const { return std::ranges::any_of(shape_.outputs, IsOnHost); }

void FoldShares::SetPiece(uint32_t piece) {
  size_t offset = 0;
  for (size_t part = 0; part < shape_.parts.size(); ++part) {
    const size_t elements = shape_.parts[part];
    shares_[part] = {Cut(elements, piece), Cut(elements, piece + 1)};
    offsets_[part] = offset;
    offset += FoldAligned((shares_[part].end - shares_[part].begin) * element_bytes_);
  }
}

FoldShares::Range FoldShares::InPiece(const FoldRun& run) const {
  const Range& share = shares_[static_cast<size_t>(run.part)];
  return {std::max(run.begin, share.begin), std::min(run.begin + run.count, share.end)};
}

size_t FoldShares::OffsetOf(int part, size_t element) const {
  const auto number = static_cast<size_t>(part);
  return offsets_[number] + (element - shares_[number].begin) * element_bytes_;
}

void FoldShares::AddInputs() {
  for (const FoldRun& run : shape_.inputs) {
    const Range range = InPiece(run);
    if (range.begin >= range.end) continue;
    const size_t offset = OffsetOf(run.part, range.begin);
    AddInput(offset, run.buffer + (range.begin - run.begin) * element_bytes_, run.on_host, offset,
             (range.end - range.begin) * element_bytes_);
  }
}

void FoldShares::AddFolds() {
  for (int part = 0; part < layout_.nranks(); ++part) {
    const Range& share = shares_[static_cast<size_t>(part)];
    if (share.begin == share.end || layout_.folders[static_cast<size_t>(part)] != layout_.rank) continue;
    AddFold(OffsetOf(part, share.begin), share.end - share.begin, part);
  }
}

void FoldShares::AddResults() {
  for (const FoldRun& run : shape_.outputs) {
    const Range range = InPiece(run);
    if (range.begin >= range.end) continue;
    const size_t offset = OffsetOf(run.part, range.begin);
    const int from = Reduces(call_.kind) ? layout_.folders[static_cast<size_t>(run.part)] : run.part;
    AddOutput(from, offset, run.buffer + (range.begin - run.begin) * element_bytes_, run.on_host, offset,
              (range.end - range.begin) * element_bytes_);
  }
}

}  // namespace annulus
