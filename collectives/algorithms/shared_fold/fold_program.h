// The program of one rank's stream for a collective in memory that all ranks of a host reach: each rank copies its
// input there, the first rank on each device folds the chunks of the ranks on that device, where its own input was, and
// each rank copies what it wants from there. Chunks are folded in the order of the ring, and those of a reduction to a
// root in the order of all such reductions, so the bits are those of host memory. Where nothing is reduced, nobody
// folds.
//
// A call is cut into pieces that the memory holds, each with four steps. Where a buffer has a part for every rank, a
// piece has some elements of each; where parts differ in size, its share of each (fold_shares.h), or, where a rank
// knows its own parts only, some elements of each (fold_exchange.h); of tensors that are added together, as many as it
// holds (fold_tensors.h). A piece lies in one half of the memory and the next one in the other: what a rank still reads
// of the last one is not overwritten by the next. When it says that it has the input of a piece there, it has the
// results of the piece before.
//
// The calls of a group are one program, with the pieces of each behind those of the one before.
//
// A kernel writes only its own rank's memory, and none touches memory of the user: so whatever becomes of a call, it
// does no harm.
//
// Threads: plain functions and values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
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

// A copy between a buffer of the user's in host memory and the staging memory, which the CPU makes.
struct FoldHostCopy {
  uint32_t piece = 0;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

// One call in a stream that may be a fold, as whoever drives it sees it.
struct StreamFold {
  FoldAgreement* agreement = nullptr;
  uint64_t number = 0;  // Among those that may be (fold_agreement.h).
  StreamCall* call = nullptr;
  uint32_t pieces = 0;       // 0: it is none. Of an exchange, the last one copies nothing.
  uint32_t first_piece = 0;  // Pieces of the program that belong to calls before this one.
  bool folds = false;        // Whether this rank does.
  // Whether each piece has steps for a buffer in host memory, and what is copied then: by piece.
  bool has_host_input = false;
  bool has_host_output = false;
  std::vector<FoldHostCopy> host_inputs;
  std::vector<FoldHostCopy> host_outputs;
  // Of an exchange: elements that this rank sends to each and takes from each. Else empty.
  std::vector<uint64_t> sends;
  std::vector<uint64_t> takes;

  bool is_exchange() const { return !sends.empty(); }
  // What all ranks take it for when they look for the half of the memory in which the next call begins: where the
  // pieces of an exchange are even in number, none is read any more at its end.
  uint64_t counted_pieces() const { return is_exchange() ? std::min<uint64_t>(pieces, 1) : pieces; }
};

// Whether a call of that kind may have a program.
constexpr bool HasFoldProgram(CollectiveKind kind) {
  return kind != CollectiveKind::kNone && kind != CollectiveKind::kBarrier && kind <= CollectiveKind::kAlltoallv;
}
// Whether a rank knows only the sizes of what itself sends and takes. Of other kinds all ranks know all sizes.
constexpr bool IsFoldExchange(CollectiveKind kind) { return IsDirect(kind) && HasVariableParts(kind); }

// One allreduce of a group.
struct FoldTensor {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  size_t count = 0;  // Elements.
  bool has_host_input = false;
  bool has_host_output = false;
};

// A run of elements of one part, in a buffer of this rank's.
struct FoldRun {
  int part = 0;
  size_t begin = 0;  // In the part.
  size_t count = 0;
  std::byte* buffer = nullptr;  // Of an input, it is only read.
  bool on_host = false;
};

// What a call has that is not a buffer, or a part for every rank, of one size: parts that differ in size, and where
// this rank has them, or tensors.
struct FoldShape {
  // Elements of each. What is reduced of part r, the rank that folds chunk r folds. Of an exchange there are none: an
  // input's part is the rank that it goes to, an output's the one that it comes from.
  std::vector<size_t> parts;
  std::vector<FoldRun> inputs;
  std::vector<FoldRun> outputs;
  std::vector<FoldTensor> tensors;  // In place of parts; none is empty.

  void Clear() {
    tensors.clear();
    parts.clear();
    inputs.clear();
    outputs.clear();
  }
  size_t elements() const { return std::accumulate(parts.begin(), parts.end(), size_t{0}); }
};

struct FoldCall {
  CollectiveKind kind = CollectiveKind::kAllreduce;  // One that HasFoldProgram.
  int root = 0;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  // Null: the buffers are those below. Else they are not used, and of a group's tensors `kind` is kAllreduceGroup.
  const FoldShape* shape = nullptr;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  size_t count = 0;  // As in the C API: of a part, where buffers have several.
  bool has_host_input = false;
  bool has_host_output = false;

  size_t part_bytes() const { return count * TypeBytes(type); }
  // Parts that the buffers of `rank` have, 0 where it has none.
  int input_parts(int rank, int nranks) const { return Parts(SendHolds(kind, rank == root), nranks); }
  int output_parts(int rank, int nranks) const { return Parts(RecvHolds(kind, rank == root), nranks); }
  // Whether some buffer has a part for each rank.
  bool has_parts() const {
    return SendHolds(kind, true) == Holding::kParts || RecvHolds(kind, true) == Holding::kParts;
  }

 private:
  static int Parts(Holding holding, int nranks) {
    return holding == Holding::kNothing ? 0 : holding == Holding::kParts ? nranks : 1;
  }
};

// Bytes of staging memory that the program of these calls needs.
size_t FoldStagingBytes(const FoldLayout& layout, std::span<const FoldCall> calls);
// Fills an empty program of calls of which each has elements, and those fields of *folds[i] that follow from calls[i].
// `pieces_before`: pieces of earlier programs. An exchange is alone.
void MakeFoldProgram(const FoldLayout& layout, std::span<const FoldCall> calls, uint64_t pieces_before,
                     std::byte* staging, StreamProgram* program, std::span<StreamFold* const> folds);

}  // namespace annulus
