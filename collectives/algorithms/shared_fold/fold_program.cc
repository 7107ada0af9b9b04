#include "collectives/algorithms/shared_fold/fold_program.h"

#include <algorithm>
#include <cstring>

#include "collectives/algorithms/shared_fold/fold_exchange.h"
#include "collectives/algorithms/shared_fold/fold_maker.h"
#include "collectives/algorithms/shared_fold/fold_shares.h"
#include "collectives/algorithms/shared_fold/fold_tensors.h"
#include "collectives/core/schedule.h"

namespace annulus {
namespace {

// The words of the device, before the lists of sources and a piece of the user's buffers.
constexpr size_t kWordsBytes = StreamCalls::kAlignment;
static_assert(StreamProgram::kMostFolds * sizeof(uint32_t) <= kWordsBytes);
static_assert(kMaxOneHopRanks <= static_cast<int>(StreamProgram::kMostFolds));

// The program of a call whose parts, if any, have one size. As many parts as there may be fit into half of the memory.
class EqualParts final : public FoldMaker {
 public:
  EqualParts(const FoldLayout& layout, const FoldCall& call) : FoldMaker(layout, call) {
    const size_t bytes = layout.piece_bytes / (call.has_parts() ? static_cast<size_t>(layout.nranks()) : 1);
    region_bytes_ = bytes / StreamCalls::kAlignment * StreamCalls::kAlignment;
  }

  uint32_t pieces() const override {
    return static_cast<uint32_t>((call_.part_bytes() + region_bytes_ - 1) / region_bytes_);
  }
  // Parts lie as far apart as in the shared memory.
  size_t CopiesBytes() const override {
    const int parts = std::max(has_host_input() ? InputParts() : 0, has_host_output() ? OutputParts() : 0);
    if (parts == 0) return 0;
    return static_cast<size_t>(parts - 1) * region_bytes_ + std::min(region_bytes_, FoldAligned(call_.part_bytes()));
  }

 private:
  // Elements of a part.
  struct Range {
    size_t begin;
    size_t end;
    bool empty() const { return begin >= end; }
  };

  bool has_host_input() const override { return call_.has_host_input; }
  bool has_host_output() const override { return call_.has_host_output; }
  // A piece of a reduction without parts ends within a chunk, or at the end of some.
  size_t MostFolds() const override {
    const auto ranks = static_cast<size_t>(layout_.nranks());
    return call_.has_parts() ? pieces() * ranks : pieces() + ranks;
  }

  void SetPiece(uint32_t piece) override {
    const size_t most = region_bytes_ / element_bytes_;
    piece_ = {piece * most, std::min(call_.count, (piece + size_t{1}) * most)};
  }

  void AddInputs() override {
    const size_t bytes = (piece_.end - piece_.begin) * element_bytes_;
    for (int part = 0; part < InputParts(); ++part) {
      const auto number = static_cast<size_t>(part);
      AddInput(OffsetOf(part, piece_.begin), call_.input + number * call_.part_bytes() + piece_.begin * element_bytes_,
               call_.has_host_input, number * region_bytes_, bytes);
    }
  }

  void AddFolds() override {
    for (int chunk = 0; chunk < layout_.nranks(); ++chunk) {
      const Range range = InPiece(chunk);
      if (range.empty() || layout_.folders[static_cast<size_t>(chunk)] != layout_.rank) continue;
      AddFold(OffsetOf(call_.has_parts() ? chunk : 0, range.begin), range.end - range.begin,
              call_.kind == CollectiveKind::kReduce ? call_.root : chunk);
    }
  }

  void AddResults() override {
    const int parts = OutputParts();
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
    AddOutput(rank, OffsetOf(memory_part, range.begin),
              call_.output + number * call_.part_bytes() + range.begin * element_bytes_, call_.has_host_output,
              number * region_bytes_ + (range.begin - piece_.begin) * element_bytes_,
              (range.end - range.begin) * element_bytes_);
  }

  // What a piece has of a chunk: of a reduce-scatter, a chunk is a part.
  Range InPiece(int chunk) const {
    if (call_.has_parts()) return piece_;
    const size_t begin = ChunkBegin(call_.count, layout_.nranks(), static_cast<uint32_t>(chunk));
    const size_t elements = ChunkElements(call_.count, layout_.nranks(), static_cast<uint32_t>(chunk));
    return {std::max(begin, piece_.begin), std::min(begin + elements, piece_.end)};
  }
  size_t OffsetOf(int part, size_t element) const {
    return static_cast<size_t>(part) * region_bytes_ + (element - piece_.begin) * element_bytes_;
  }
  int InputParts() const { return call_.input_parts(layout_.rank, layout_.nranks()); }
  int OutputParts() const { return call_.output_parts(layout_.rank, layout_.nranks()); }

  size_t region_bytes_ = 0;  // For a piece of a part.
  Range piece_{};
};

template <class Use>
void WithMaker(const FoldLayout& layout, const FoldCall& call, Use use) {
  if (call.kind == CollectiveKind::kAllreduceGroup) {
    FoldTensors maker(layout, call);
    use(&maker);
  } else if (IsFoldExchange(call.kind)) {
    FoldExchange maker(layout, call);
    use(&maker);
  } else if (call.shape != nullptr) {
    FoldShares maker(layout, call);
    use(&maker);
  } else {
    EqualParts maker(layout, call);
    use(&maker);
  }
}

// Elements of all that goes to each rank, or comes from it.
void AddUp(const std::vector<FoldRun>& runs, int nranks, std::vector<uint64_t>* elements) {
  elements->assign(static_cast<size_t>(nranks), 0);
  for (const FoldRun& run : runs) (*elements)[static_cast<size_t>(run.part)] += run.count;
}

void SetExchanged(const FoldLayout& layout, const FoldCall& call, StreamFold* fold) {
  fold->sends.clear();
  fold->takes.clear();
  if (!IsFoldExchange(call.kind)) return;
  AddUp(call.shape->inputs, layout.nranks(), &fold->sends);
  AddUp(call.shape->outputs, layout.nranks(), &fold->takes);
}

// Bytes of the lists of all calls.
size_t ListsBytes(const FoldLayout& layout, std::span<const FoldCall> calls) {
  size_t bytes = 0;
  for (const FoldCall& call : calls)
    WithMaker(layout, call, [&](const FoldMaker* maker) { bytes += maker->ListsBytes(); });
  return bytes;
}

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

size_t FoldStagingBytes(const FoldLayout& layout, std::span<const FoldCall> calls) {
  size_t copies = 0;  // A call's copies begin when those of the one before are over.
  for (const FoldCall& call : calls)
    WithMaker(layout, call, [&](const FoldMaker* maker) { copies = std::max(copies, maker->CopiesBytes()); });
  return kWordsBytes + ListsBytes(layout, calls) + copies;
}

void MakeFoldProgram(const FoldLayout& layout, std::span<const FoldCall> calls, uint64_t pieces_before,
                     std::byte* staging, StreamProgram* program, std::span<StreamFold* const> folds) {
  FoldMaker::Target target{program, nullptr, 0, pieces_before, staging + kWordsBytes, nullptr};
  target.copies = target.lists + ListsBytes(layout, calls);
  program->done = reinterpret_cast<uint32_t*>(staging);
  for (size_t i = 0; i < calls.size(); ++i) {
    WithMaker(layout, calls[i], [&](FoldMaker* maker) {
      target.fold = folds[i];
      maker->Make(target);
      SetExchanged(layout, calls[i], folds[i]);
      target.first_piece += maker->pieces();
      target.pieces_before += maker->pieces();
      target.lists += maker->ListsBytes();
    });
  }
}

}  // namespace annulus
