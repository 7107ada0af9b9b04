// FoldShares: the program of a call whose parts differ in size. Each piece has an equal share of each part, so that all
// ranks have something to fold in each, and the shares lie one behind the other in the memory.
//
// Threads: as FoldMaker.
#pragma once

#include <array>

#include "collectives/algorithms/shared_fold/fold_maker.h"
#include "collectives/core/schedule.h"

namespace annulus {

class FoldShares final : public FoldMaker {
 public:
  // `call` has a shape, with elements.
  FoldShares(const FoldLayout& layout, const FoldCall& call);

  uint32_t pieces() const override { return pieces_; }
  size_t CopiesBytes() const override;

 private:
  // Elements of a part.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  void SetPiece(uint32_t piece) override;
  void AddInputs() override;
  void AddFolds() override;
  void AddResults() override;
  bool has_host_input() const override;
  bool has_host_output() const override;
  size_t MostFolds() const override { return size_t{pieces_} * shape_.parts.size(); }

  // Where the share of piece `piece` of a part of `elements` begins.
  size_t Cut(size_t elements, uint32_t piece) const {
    return elements / pieces_ * piece + elements % pieces_ * piece / pieces_;
  }
  // What the piece has of a run.
  Range InPiece(const FoldRun& run) const;
  // Where the element lies in the memory.
  size_t OffsetOf(int part, size_t element) const;

  const FoldShape& shape_;
  uint32_t pieces_ = 1;
  std::array<Range, kMaxOneHopRanks> shares_{};
  std::array<size_t, kMaxOneHopRanks> offsets_{};  // Of the shares, in bytes.
};

}  // namespace annulus
