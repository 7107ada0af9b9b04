#include "collectives/algorithms/shared_fold/fold_program.h"

#include <algorithm>
#include <cstring>

#include "collectives/core/schedule.h"

namespace annulus {
namespace {

using Kind = StreamStep::Kind;

// Parts of the staging memory: the words of the device, lists of sources, a piece of the user's buffers.
constexpr size_t kWordsBytes = StreamCalls::kAlignment;
static_assert(StreamProgram::kMostFolds * sizeof(uint32_t) <= kWordsBytes);
static_assert(kMaxOneHopRanks <= static_cast<int>(StreamProgram::kMostFolds));

size_t Aligned(size_t bytes) {
  return (bytes + StreamCalls::kAlignment - 1) / StreamCalls::kAlignment * StreamCalls::kAlignment;
}

// Most bytes of a part that a piece has: as many parts as there may be fit into half of the memory.
size_t PieceBytes(const FoldLayout& layout, const FoldCall& call) {
  const size_t bytes = layout.piece_bytes / (call.has_parts() ? static_cast<size_t>(layout.nranks()) : 1);
  return bytes / StreamCalls::kAlignment * StreamCalls::kAlignment;
}

uint32_t PiecesOf(const FoldLayout& layout, const FoldCall& call) {
  const size_t piece = PieceBytes(layout, call);
  return static_cast<uint32_t>((call.part_bytes() + piece - 1) / piece);
}

// A piece of a reduction without parts ends within a chunk, or at the end of some.
size_t ListsBytes(const FoldLayout& layout, const FoldCall& call) {
  if (!Reduces(call.kind)) return 0;
  const size_t ranks = static_cast<size_t>(layout.nranks());
  const size_t pieces = PiecesOf(layout, call);
  const size_t lists = call.has_parts() ? pieces * ranks : pieces + ranks;
  return Aligned(lists * ranks * sizeof(std::byte*));
}

class ProgramMaker {
 public:
  ProgramMaker(const FoldLayout& layout, const FoldCall& call, std::byte* staging, StreamProgram* program)
      : layout_(layout),
        call_(call),
        program_(program),
        element_bytes_(TypeBytes(call.type)),
        region_bytes_(PieceBytes(layout, call)),
        folds_(Reduces(call.kind) && layout.folds()),
        lists_(reinterpret_cast<const std::byte**>(staging + kWordsBytes)),
        copies_(staging + kWordsBytes + ListsBytes(layout, call)) {
    program->done = reinterpret_cast<uint32_t*>(staging);
  }

  void Make() {
    const uint32_t pieces = PiecesOf(layout_, call_);
    for (uint32_t piece = 0; piece < pieces; ++piece) AddPiece(piece);
    program_->last = PieceSteps(pieces - 1).out();
  }
  std::byte* copies() const { return copies_; }
  bool folds() const { return folds_; }

 private:
  // Elements of a part.
  struct Range {
    size_t begin;
    size_t end;
    bool empty() const { return begin >= end; }
  };

  void AddPiece(uint32_t piece) {
    const PieceSteps steps(piece);
    const size_t most = region_bytes_ / element_bytes_;
    piece_ = {piece * most, std::min(call_.count, (piece + size_t{1}) * most)};
    half_ = (call_.pieces_before + piece) % 2 * layout_.piece_bytes;
    AddInputs(steps);
    if (folds_) {
      program_->Add(Kind::kAwait, steps.ready());
      AddFolds();
      program_->Add(Kind::kSay, steps.folded());
    }
    program_->Add(Kind::kAwait, steps.folded());
    AddResults();
    if (!call_.has_host_output) return;
    program_->Add(Kind::kSay, steps.out());
    program_->Add(Kind::kAwait, steps.out());
  }

  void AddInputs(const PieceSteps& steps) {
    if (call_.has_host_input) {
      program_->Add(Kind::kSay, steps.came());
      program_->Add(Kind::kAwait, steps.came());
    }
    const size_t bytes = (piece_.end - piece_.begin) * element_bytes_;
    for (int part = 0; part < call_.input_parts(layout_.nranks()); ++part) {
      const auto number = static_cast<size_t>(part);
      const std::byte* const in_place = call_.input + number * call_.part_bytes() + piece_.begin * element_bytes_;
      program_->Copy(InMemoryOf(layout_.rank, part, piece_.begin),
                     call_.has_host_input ? copies_ + number * region_bytes_ : in_place, bytes, call_.has_host_input);
    }
    program_->Add(Kind::kSay, steps.ready());
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
    const int part = call_.has_parts() ? chunk : 0;
    const int last = call_.kind == CollectiveKind::kReduce ? call_.root : chunk;
    op.src = lists_;
    for (int k = 0; k < n; ++k) {
      const std::byte* const source = InMemoryOf((last + 1 + k) % n, part, range.begin);
      if (k < 2) op.inline_src[k] = source;
      *lists_++ = source;
    }
    op.dst[0] = InMemoryOf(layout_.rank, part, range.begin);
    op.num_sources = n;
    op.count = range.end - range.begin;
    op.type = call_.type;
    op.op = call_.op;
    op.divisor = call_.op == ReduceOp::kAvg ? static_cast<uint32_t>(n) : 0;
    program_->folds.push_back(op);
  }

  void AddResults() {
    const int parts = call_.output_parts(layout_.nranks());
    if (parts == 0) return;
    switch (call_.kind) {
      case CollectiveKind::kBroadcast:
        return AddResult(0, call_.root, 0, piece_);
      case CollectiveKind::kScatter:
        return AddResult(0, call_.root, layout_.rank, piece_);
      case CollectiveKind::kReduceScatter:
        return AddResult(0, layout_.folders[static_cast<size_t>(layout_.rank)], layout_.rank, piece_);
      case CollectiveKind::kAlltoall:
        for (int rank = 0; rank < parts; ++rank) AddResult(rank, rank, layout_.rank, piece_);
        return;
      case CollectiveKind::kAllgather:
      case CollectiveKind::kGather:
        for (int rank = 0; rank < parts; ++rank) AddResult(rank, rank, 0, piece_);
        return;
      default:
        return AddChunks();
    }
  }

  // Neighbours that one rank has folded are one copy.
  void AddChunks() {
    int folder = -1;
    Range run{piece_.begin, piece_.begin};
    for (int chunk = 0; chunk < layout_.nranks(); ++chunk) {
      const Range range = InPiece(chunk);
      const int own = layout_.folders[static_cast<size_t>(chunk)];
      if (range.empty()) continue;
      if (own != folder) {
        if (!run.empty()) AddResult(0, folder, 0, run);
        run.begin = range.begin;
        folder = own;
      }
      run.end = range.end;
    }
    if (!run.empty()) AddResult(0, folder, 0, run);
  }

  // Copies a range of a part of the output from where `rank` has it.
  void AddResult(int output_part, int rank, int memory_part, const Range& range) {
    const auto number = static_cast<size_t>(output_part);
    std::byte* const to = call_.has_host_output
                              ? copies_ + number * region_bytes_ + (range.begin - piece_.begin) * element_bytes_
                              : call_.output + number * call_.part_bytes() + range.begin * element_bytes_;
    program_->Copy(to, InMemoryOf(rank, memory_part, range.begin), (range.end - range.begin) * element_bytes_);
  }

  // What a piece has of a chunk: of a reduce-scatter, a chunk is a part.
  Range InPiece(int chunk) const {
    if (call_.has_parts()) return piece_;
    const size_t begin = ChunkBegin(call_.count, layout_.nranks(), static_cast<uint32_t>(chunk));
    const size_t elements = ChunkElements(call_.count, layout_.nranks(), static_cast<uint32_t>(chunk));
    return {std::max(begin, piece_.begin), std::min(begin + elements, piece_.end)};
  }
  std::byte* InMemoryOf(int rank, int part, size_t element) const {
    return layout_.memory[static_cast<size_t>(rank)] + half_ + static_cast<size_t>(part) * region_bytes_ +
           (element - piece_.begin) * element_bytes_;
  }

  const FoldLayout& layout_;
  const FoldCall& call_;
  StreamProgram* const program_;
  const size_t element_bytes_;
  const size_t region_bytes_;  // For a piece of a part.
  const bool folds_;
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
  const int n = layout.nranks();
  const int parts =
      std::max(call.has_host_input ? call.input_parts(n) : 0, call.has_host_output ? call.output_parts(n) : 0);
  const size_t piece = std::min(PieceBytes(layout, call), Aligned(call.part_bytes()));
  // Parts lie as far apart as in the shared memory.
  const size_t copies = parts == 0 ? 0 : static_cast<size_t>(parts - 1) * PieceBytes(layout, call) + piece;
  return kWordsBytes + ListsBytes(layout, call) + copies;
}

void MakeFoldProgram(const FoldLayout& layout, const FoldCall& call, std::byte* staging, StreamProgram* program,
                     StreamFold* fold) {
  ProgramMaker maker(layout, call, staging, program);
  maker.Make();
  fold->pieces = PiecesOf(layout, call);
  fold->folds = maker.folds();
  fold->host_input = call.has_host_input ? call.input : nullptr;
  fold->host_output = call.has_host_output ? call.output : nullptr;
  fold->staging = maker.copies();
  fold->input_parts = call.input_parts(layout.nranks());
  fold->output_parts = call.output_parts(layout.nranks());
  fold->part_bytes = call.part_bytes();
  fold->piece_bytes = PieceBytes(layout, call);
}

}  // namespace annulus
