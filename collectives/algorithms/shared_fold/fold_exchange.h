// FoldExchange: the program of a call of which each rank knows only the sizes of the parts that itself sends and
// receives. The memory has a place of fixed size for a piece of each part, so that who takes a part knows where it
// lies. A rank's program has as many pieces as its own largest part, and one more that copies nothing: once it has come
// to that, it has all results. What a rank has for itself is one copy, where both buffers are on a device. How many
// pieces there are in all, the ranks find out as they go (shared_fold_stream.cc).
//
// Threads: as FoldMaker.
#pragma once

#include "collectives/algorithms/shared_fold/fold_maker.h"

namespace annulus {

class FoldExchange final : public FoldMaker {
 public:
  // `call` has a shape with runs that are whole parts: an input's part is the rank that it goes to, an output's the
  // rank that it comes from.
  FoldExchange(const FoldLayout& layout, const FoldCall& call);

  uint32_t pieces() const override { return data_pieces_ + 1; }
  size_t CopiesBytes() const override;

 private:
  // Of a part, in elements.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
    bool empty() const { return begin >= end; }
  };

  void SetPiece(uint32_t piece) override { first_ = piece * RegionElements(); }
  void AddInputs() override;
  void AddFolds() override {}
  void AddResults() override;
  bool has_host_input() const override;
  bool has_host_output() const override;
  size_t MostFolds() const override { return 0; }

  size_t RegionElements() const { return region_bytes_ / element_bytes_; }
  // Sets own_input_ and own_output_.
  void FindOwn();
  // Whether the run is of what this rank has for itself and copies at once.
  bool IsOwn(const FoldRun& run) const { return &run == own_input_ || &run == own_output_; }
  // Elements that the piece has of a run.
  Range InPiece(const FoldRun& run) const;
  // Where what `from` sends to `to` lies in the memory of `from`.
  size_t OffsetOf(int to) const;
  // Staging memory for a piece of those that lie in host memory.
  size_t StagedBytes(const std::vector<FoldRun>& runs) const;

  const FoldShape& shape_;
  const FoldRun* own_input_ = nullptr;  // Null: that goes through the memory, or is empty.
  const FoldRun* own_output_ = nullptr;
  size_t region_bytes_ = 0;   // For a piece of a part.
  uint32_t data_pieces_ = 1;  // At least one: others may have some where this rank has nothing.
  size_t first_ = 0;          // Element of each part with which the piece begins.
};

}  // namespace annulus
