// FoldTensors: the program of the allreduces of a group that are added together. A piece has as many tensors as the
// memory holds, one behind the other; a large one is cut. So a tensor takes a copy each way, as through host memory,
// and a fold for each of its chunks, which have their own orders of addition.
//
// Threads: as FoldMaker.
#pragma once

#include "collectives/algorithms/shared_fold/fold_maker.h"

namespace annulus {

class FoldTensors final : public FoldMaker {
 public:
  // `call` has tensors.
  FoldTensors(const FoldLayout& layout, const FoldCall& call);

  uint32_t pieces() const override { return pieces_; }
  size_t CopiesBytes() const override { return has_host_input_ || has_host_output_ ? layout_.piece_bytes : 0; }

 private:
  // Where a piece begins.
  struct Place {
    size_t tensor = 0;
    size_t element = 0;
  };
  // What a piece has of a tensor.
  struct Run {
    const FoldTensor* tensor = nullptr;
    size_t begin = 0;
    size_t end = 0;
    size_t offset = 0;  // In the memory, in bytes.
  };

  void SetPiece(uint32_t piece) override;
  void AddInputs() override;
  void AddFolds() override;
  void AddResults() override;
  bool has_host_input() const override { return has_host_input_; }
  bool has_host_output() const override { return has_host_output_; }
  // A piece's end cuts a chunk of a tensor in two.
  size_t MostFolds() const override { return (tensors_.size() + pieces_) * static_cast<size_t>(layout_.nranks()); }

  // Calls run(Run) for those of the piece that begins there. Returns where the next one begins.
  template <class Use>
  Place EachRun(Place from, Use use) const;
  // Copies elements `begin` to `end` of a tensor from where `rank` has them.
  void AddResult(const Run& run, int rank, size_t begin, size_t end);

  const std::vector<FoldTensor>& tensors_;
  uint32_t pieces_ = 0;
  bool has_host_input_ = false;
  bool has_host_output_ = false;
  Place piece_;
  Place next_;
};

}  // namespace annulus
