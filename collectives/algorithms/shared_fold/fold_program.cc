#include "collectives/algorithms/shared_fold/fold_program.h"

#include <algorithm>
#include <cstring>

#include "collectives/core/schedule.h"

namespace annulus {
namespace {

using Kind = StreamStep::Kind;

// Of the staging memory: the words of the device, lists of sources, a piece of the user's buffers.
constexpr size_t kWordsBytes = StreamCalls::kAlignment;
static_assert(StreamProgram::kMostFolds * sizeof(uint32_t) <= kWordsBytes);
static_assert(kMaxOneHopRanks <= static_cast<int>(StreamProgram::kMostFolds));

uint32_t PiecesOf(const FoldLayout& layout, size_t bytes) {
  return static_cast<uint32_t>((bytes + layout.piece_bytes - 1) / layout.piece_bytes);
}

// A piece ends within a chunk, or at the end of some.
size_t ListsBytes(const FoldLayout& layout, size_t bytes) {
  const size_t ranks = static_cast<size_t>(layout.nranks());
  const size_t lists = (PiecesOf(layout, bytes) + ranks) * ranks * sizeof(std::byte*);
  return (lists + StreamCalls::kAlignment - 1) / StreamCalls::kAlignment * StreamCalls::kAlignment;
}

class ProgramMaker {
 public:
  ProgramMaker(const FoldLayout& layout, const FoldCall& call, std::byte* staging, StreamProgram* program)
      : layout_(layout),
        call_(call),
        program_(program),
        element_bytes_(TypeBytes(call.type)),
        lists_(reinterpret_cast<const std::byte**>(staging + kWordsBytes)),
        copies_(staging + kWordsBytes + ListsBytes(layout, call.bytes())) {
    program->done = reinterpret_cast<uint32_t*>(staging);
  }

  void Make() {
    const uint32_t pieces = PiecesOf(layout_, call_.bytes());
    for (uint32_t piece = 0; piece < pieces; ++piece) AddPiece(piece);
    program_->last = PieceSteps(pieces - 1).out();
  }
  std::byte* copies() const { return copies_; }

 private:
  // Elements of the call.
  struct Range {
    size_t begin;
    size_t end;
    bool empty() const { return begin >= end; }
  };

  void AddPiece(uint32_t piece) {
    const PieceSteps steps(piece);
    const size_t most = layout_.piece_bytes / element_bytes_;
    piece_ = {piece * most, std::min(call_.count, (piece + size_t{1}) * most)};
    half_ = (call_.pieces_before + piece) % 2 * layout_.piece_bytes;
    const size_t offset = piece_.begin * element_bytes_;
    if (call_.has_host_input) {
      program_->Add(Kind::kSay, steps.came());
      program_->Add(Kind::kAwait, steps.came());
    }
    program_->Copy(InMemoryOf(layout_.rank, piece_.begin), call_.has_host_input ? copies_ : call_.input + offset,
                   (piece_.end - piece_.begin) * element_bytes_);
    program_->Add(Kind::kSay, steps.ready());
    if (layout_.folds()) {
      program_->Add(Kind::kAwait, steps.ready());
      AddFolds();
      program_->Add(Kind::kSay, steps.folded());
    }
    program_->Add(Kind::kAwait, steps.folded());
    AddResults(call_.has_host_output ? copies_ : call_.output + offset);
    if (!call_.has_host_output) return;
    program_->Add(Kind::kSay, steps.out());
    program_->Add(Kind::kAwait, steps.out());
  }

  void AddFolds() {
    uint32_t folds = 0;
    for (int chunk = 0; chunk < layout_.nranks(); ++chunk) {
      const Range range = InPiece(chunk);
      if (range.empty() || layout_.folders[static_cast<size_t>(chunk)] != layout_.rank) continue;
      AddFold(chunk, range);
      ++folds;
    }
    if (folds > 0) program_->Add(Kind::kFold, folds);
  }

  void AddFold(int chunk, const Range& range) {
    SliceOp op;
    const int n = layout_.nranks();
    op.src = lists_;
    for (int k = 0; k < n; ++k) {
      const std::byte* const source = InMemoryOf((chunk + 1 + k) % n, range.begin);
      if (k < 2) op.inline_src[k] = source;
      *lists_++ = source;
    }
    op.dst[0] = InMemoryOf(layout_.rank, range.begin);
    op.num_sources = n;
    op.count = range.end - range.begin;
    op.type = call_.type;
    op.op = call_.op;
    op.divisor = call_.op == ReduceOp::kAvg ? static_cast<uint32_t>(n) : 0;
    program_->folds.push_back(op);
  }

  // Neighbours that one rank has folded are one copy.
  void AddResults(std::byte* to) {
    int folder = -1;
    Range run{piece_.begin, piece_.begin};
    const auto add = [&] {
      if (run.empty()) return;
      program_->Copy(to + (run.begin - piece_.begin) * element_bytes_, InMemoryOf(folder, run.begin),
                     (run.end - run.begin) * element_bytes_);
    };
    for (int chunk = 0; chunk < layout_.nranks(); ++chunk) {
      const Range range = InPiece(chunk);
      const int own = layout_.folders[static_cast<size_t>(chunk)];
      if (range.empty()) continue;
      if (own != folder) {
        add();
        run.begin = range.begin;
        folder = own;
      }
      run.end = range.end;
    }
    add();
  }

  Range InPiece(int chunk) const {
    const size_t begin = ChunkBegin(call_.count, layout_.nranks(), static_cast<uint32_t>(chunk));
    const size_t elements = ChunkElements(call_.count, layout_.nranks(), static_cast<uint32_t>(chunk));
    return {std::max(begin, piece_.begin), std::min(begin + elements, piece_.end)};
  }
  std::byte* InMemoryOf(int rank, size_t element) const {
    return layout_.memory[static_cast<size_t>(rank)] + half_ + (element - piece_.begin) * element_bytes_;
  }

  const FoldLayout& layout_;
  const FoldCall& call_;
  StreamProgram* const program_;
  const size_t element_bytes_;
  const std::byte** lists_;
  std::byte* const copies_;
  Range piece_{};
  size_t half_ = 0;
};

}  // namespace

bool FoldLayout::folds() const { return std::ranges::find(folders, rank) != folders.end(); }

FoldLayout LayOut(int rank, std::span<const SharedPlace> places, std::vector<std::byte*> memory, size_t piece_bytes) {
  FoldLayout layout;
  layout.rank = rank;
  layout.memory = std::move(memory);
  layout.piece_bytes = piece_bytes;
  for (const SharedPlace& place : places) {
    const auto shares = [&](const SharedPlace& other) {
      return std::memcmp(other.device, place.device, sizeof place.device) == 0;
    };
    layout.folders.push_back(static_cast<int>(std::ranges::find_if(places, shares) - places.begin()));
  }
  return layout;
}

size_t FoldStagingBytes(const FoldLayout& layout, const FoldCall& call) {
  const size_t copies = call.has_host_memory() ? std::min(call.bytes(), layout.piece_bytes) : 0;
  return kWordsBytes + ListsBytes(layout, call.bytes()) + copies;
}

void MakeFoldProgram(const FoldLayout& layout, const FoldCall& call, std::byte* staging, StreamProgram* program,
                     StreamFold* fold) {
  ProgramMaker maker(layout, call, staging, program);
  maker.Make();
  fold->pieces = PiecesOf(layout, call.bytes());
  fold->folds = layout.folds();
  fold->host_input = call.has_host_input ? call.input : nullptr;
  fold->host_output = call.has_host_output ? call.output : nullptr;
  fold->staging = maker.copies();
  fold->bytes = call.bytes();
  fold->piece_bytes = layout.piece_bytes;
}

}  // namespace annulus
