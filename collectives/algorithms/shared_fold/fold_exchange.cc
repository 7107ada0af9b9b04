#include "collectives/algorithms/shared_fold/fold_exchange.h"

#include <algorithm>

namespace annulus {
namespace {

bool IsOnHost(const FoldRun& run) { return run.on_host; }

}  // namespace

FoldExchange::FoldExchange(const FoldLayout& layout, const FoldCall& call)
    : FoldMaker(layout, call), shape_(*call.shape) {
  // Of a gatherv, too, of which each rank sends one part: a root whose output lies in host memory stages all of them.
  const size_t regions = static_cast<size_t>(layout.nranks());
  region_bytes_ = layout.piece_bytes / regions / StreamCalls::kAlignment * StreamCalls::kAlignment;
  FindOwn();
  size_t most = 1;
  for (const auto* const runs : {&shape_.inputs, &shape_.outputs}) {
    for (const FoldRun& run : *runs) most = std::max(most, IsOwn(run) ? 0 : run.count);
  }
  data_pieces_ = static_cast<uint32_t>((most + RegionElements() - 1) / RegionElements());
}

void FoldExchange::FindOwn() {
  const auto is_own = [this](const FoldRun& run) { return run.part == layout_.rank && !run.on_host; };
  const auto input = std::ranges::find_if(shape_.inputs, is_own);
  const auto output = std::ranges::find_if(shape_.outputs, is_own);
  if (input == shape_.inputs.end() || output == shape_.outputs.end()) return;
  own_input_ = &*input;
  own_output_ = &*output;
}

size_t FoldExchange::CopiesBytes() const { return std::max(StagedBytes(shape_.inputs), StagedBytes(shape_.outputs)); }

size_t FoldExchange::StagedBytes(const std::vector<FoldRun>& runs) const {
  size_t bytes = 0;
  for (const FoldRun& run : runs) {
    if (run.on_host) bytes += FoldAligned(std::min(run.count * element_bytes_, region_bytes_));
  }
  return bytes;
}

bool FoldExchange::has_host_input() const { return std::ranges::any_of(shape_.inputs, IsOnHost); }

bool FoldExchange::has_host_output() const { return std::ranges::any_of(shape_.outputs, IsOnHost); }

FoldExchange::Range FoldExchange::InPiece(const FoldRun& run) const {
  return {first_, std::min(run.count, first_ + RegionElements())};
}

size_t FoldExchange::OffsetOf(int to) const { return static_cast<size_t>(to) * region_bytes_; }

void FoldExchange::AddInputs() {
  size_t staged = 0;
  for (const FoldRun& run : shape_.inputs) {
    const Range range = InPiece(run);
    if (range.empty() || IsOwn(run)) continue;
    const size_t bytes = (range.end - range.begin) * element_bytes_;
    AddInput(OffsetOf(run.part), run.buffer + range.begin * element_bytes_, run.on_host, staged, bytes);
    if (run.on_host) staged += FoldAligned(bytes);
  }
}

void FoldExchange::AddResults() {
  // In place there is nothing to copy.
  if (first_ == 0 && own_output_ != nullptr && own_output_->buffer != own_input_->buffer)
    AddCopy(own_output_->buffer, own_input_->buffer, own_output_->count * element_bytes_);
  size_t staged = 0;
  for (const FoldRun& run : shape_.outputs) {
    const Range range = InPiece(run);
    if (range.empty() || IsOwn(run)) continue;
    const size_t bytes = (range.end - range.begin) * element_bytes_;
    AddOutput(run.part, OffsetOf(layout_.rank), run.buffer + range.begin * element_bytes_, run.on_host, staged, bytes);
    if (run.on_host) staged += FoldAligned(bytes);
  }
}

}  // namespace annulus
