// The program of one rank's stream for a collective in memory that all ranks of a host reach: each rank copies its
// input there, the first rank on each device folds the chunks of the ranks on that device, where its own input was, and
// each rank copies what it wants from there. Chunks are folded in the order of the ring, and those of a reduction to a
// root in the order of all such reductions, so the bits are those of host memory. Where nothing is reduced, nobody
// folds.
//
// A call is cut into pieces that the memory holds, each with four steps. Where a buffer has a part for every rank, a
// piece has some elements of each. A piece lies in one half of the memory and the next one in the other: what a rank
// still reads of the last one is not overwritten by the next. When it says that it has the input of a piece there, it
// has the results of the piece before.
//
// A kernel writes only its own rank's memory, and none touches memory of the user: so whatever becomes of a call, it
// does no harm.
//
// Threads: plain functions and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/core/collective.h"
#include "collectives/reduce/shared_memory.h"
#include "collectives/reduce/stream_call.h"

namespace annulus {

class FoldAgreement;

// Steps of piece `piece`, from 0. Those of input and output are there only where these lie in host memory.
struct PieceSteps {
  explicit constexpr PieceSteps(uint32_t piece) : begin(4 * piece) {}
  uint32_t begin;

  // The staging memory waits for the input.
  constexpr uint32_t came() const { return begin + 1; }
  // The input is in the shared memory; what follows is folds.
  constexpr uint32_t ready() const { return begin + 2; }
  // This rank's folds are done; what follows takes the results.
  constexpr uint32_t folded() const { return begin + 3; }
  // The staging memory has the output.
  constexpr uint32_t out() const { return begin + 4; }
};

// What does not change from call to call.
struct FoldLayout {
  int rank = 0;
  std::vector<int> folders;        // Rank that folds each chunk.
  std::vector<std::byte*> memory;  // Where this rank finds that of each.
  size_t piece_bytes = 0;          // Half of each memory, a multiple of every element.

  int nranks() const { return static_cast<int>(folders.size()); }
  // Whether this rank folds something.
  bool folds() const;
};
FoldLayout LayOut(int rank, std::span<const SharedPlace> places, std::vector<std::byte*> memory, size_t piece_bytes);

// One call in a stream that may be a fold, as whoever drives it sees it.
struct StreamFold {
  FoldAgreement* agreement = nullptr;
  uint64_t number = 0;  // Among those that may be (fold_agreement.h).
  StreamCall* call = nullptr;
  uint32_t pieces = 0;  // 0: it is none.
  bool folds = false;   // Whether this rank does.
  // The user's buffers, where they lie in host memory; else null, as where this rank has none.
  const std::byte* host_input = nullptr;
  std::byte* host_output = nullptr;
  std::byte* staging = nullptr;  // For a piece of them: one part behind the other.
  int input_parts = 1;
  int output_parts = 1;
  size_t part_bytes = 0;
  size_t piece_bytes = 0;  // Bytes of a part that one piece takes.
};

// Whether a call of that kind may have a program: all ranks know the sizes of all parts alike.
constexpr bool HasFoldProgram(CollectiveKind kind) {
  return kind != CollectiveKind::kNone && kind != CollectiveKind::kBarrier && !IsMessage(kind) &&
         !HasVariableParts(kind) && kind <= CollectiveKind::kAlltoall;
}

struct FoldCall {
  CollectiveKind kind = CollectiveKind::kAllreduce;  // One that HasFoldProgram.
  int rank = 0;
  int root = 0;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  bool has_host_input = false;
  bool has_host_output = false;
  size_t count = 0;  // As in the C API: of a part, where buffers have several.
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  uint64_t pieces_before = 0;  // Pieces of earlier calls.

  size_t part_bytes() const { return count * TypeBytes(type); }
  // Parts that this rank's buffers have, 0 where it has none.
  int input_parts(int nranks) const { return Parts(SendHolds(kind, rank == root), nranks); }
  int output_parts(int nranks) const { return Parts(RecvHolds(kind, rank == root), nranks); }
  // Whether some buffer has a part for each rank.
  bool has_parts() const {
    return SendHolds(kind, true) == Holding::kParts || RecvHolds(kind, true) == Holding::kParts;
  }

 private:
  static int Parts(Holding holding, int nranks) {
    return holding == Holding::kNothing ? 0 : holding == Holding::kParts ? nranks : 1;
  }
};

// Bytes of staging memory that the program of a call needs.
size_t FoldStagingBytes(const FoldLayout& layout, const FoldCall& call);
// Fills an empty program, and those fields of *fold that follow from the call.
void MakeFoldProgram(const FoldLayout& layout, const FoldCall& call, std::byte* staging, StreamProgram* program,
                     StreamFold* fold);

}  // namespace annulus
