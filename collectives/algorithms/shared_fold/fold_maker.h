// FoldMaker: what programs of calls have in common, however their parts lie (fold_program.h).
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/algorithms/shared_fold/fold_program.h"
#include "collectives/reduce/stream_call.h"

namespace annulus {

inline size_t FoldAligned(size_t bytes) {
  return (bytes + StreamCalls::kAlignment - 1) / StreamCalls::kAlignment * StreamCalls::kAlignment;
}

class FoldMaker {
 public:
  // Where a call's steps go.
  struct Target {
    StreamProgram* program = nullptr;
    StreamFold* fold = nullptr;
    uint32_t first_piece = 0;    // Pieces of the program so far.
    uint64_t pieces_before = 0;  // All pieces so far.
    std::byte* lists = nullptr;
    std::byte* copies = nullptr;
  };

  FoldMaker(const FoldLayout& layout, const FoldCall& call);
  FoldMaker(const FoldMaker&) = delete;
  FoldMaker& operator=(const FoldMaker&) = delete;

  virtual uint32_t pieces() const = 0;
  // Staging memory for the lists of sources, and for a piece of the user's buffers.
  size_t ListsBytes() const;
  virtual size_t CopiesBytes() const = 0;

  void Make(const Target& target);

 protected:
  ~FoldMaker() = default;

  // Begins a piece.
  virtual void SetPiece(uint32_t piece) = 0;
  // Each by the functions below, for the piece.
  virtual void AddInputs() = 0;
  virtual void AddFolds() = 0;
  virtual void AddResults() = 0;
  virtual bool has_host_input() const = 0;
  virtual bool has_host_output() const = 0;
  // Most folds of all pieces together. Those of a piece are launched so many at a time as may be.
  virtual size_t MostFolds() const = 0;

  // Copies `bytes` from a buffer of the user's to this rank's memory, at `offset` of the piece; on the host, by way of
  // `staged` of the staging memory.
  void AddInput(size_t offset, const std::byte* user, bool on_host, size_t staged, size_t bytes);
  // Folds `count` elements at `offset`, from the rank behind `last` on.
  void AddFold(size_t offset, size_t count, int last);
  // Copies `bytes` from the memory of `rank` to a buffer of the user's.
  void AddOutput(int rank, size_t offset, std::byte* user, bool on_host, size_t staged, size_t bytes);

  // Copies between two buffers of the user's, neither of which is in host memory that the device does not reach.
  void AddCopy(std::byte* to, const std::byte* from, size_t bytes) { target_.program->Copy(to, from, bytes); }

  const FoldLayout& layout_;
  const FoldCall& call_;
  const size_t element_bytes_;

 private:
  void AddPiece(uint32_t piece);
  void Launch();
  std::byte* InMemoryOf(int rank, size_t offset) const {
    return layout_.memory[static_cast<size_t>(rank)] + half_ + offset;
  }

  const bool folds_;
  Target target_;
  const std::byte** lists_ = nullptr;
  uint32_t piece_ = 0;
  size_t half_ = 0;
  uint32_t folds_to_launch_ = 0;
};

}  // namespace annulus
