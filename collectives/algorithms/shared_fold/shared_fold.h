// SharedFold: collectives on device memory that the ranks of a host can reach in each other. Each result is
// computed once, from all inputs, and written to all outputs: 2nS bytes of memory traffic for an allreduce of S bytes
// by n ranks, where a ring takes 5(n-1)S. Chunks are folded in the order of the ring, so the bits are those of the
// ring.
//
// A rank's chunk is folded by the first of the ranks that share its device. So where all ranks share one, rank 0 does
// all work, and the device need not switch between processes: that takes some 150 us each time on an H200.
//
// Three hops of the short path:
//   1. Each rank tells where its buffers are, or that nobody can reach them.
//   2. Each rank tells whether it has found those that it works on, or whose descriptors it lacks. Then their owners
//      send them and say so in a further hop, and the second comes again.
//   3. Each rank tells that its folds are done.
// After the first or the second, all ranks may find that the call cannot go this way: then it is declined.
//
// Calls in streams whose ranks have agreed (fold_agreement.h) are programs that the device has already got
// (fold_program.h). For each piece there are two hops: the first or a further one tells that a rank's input is in the
// shared memory, the other that its folds are done. Between them words of the stream are looked at and gates opened.
//
// Of an exchange (fold_exchange.h) there is only the first of the two, in which each rank tells besides whether it has
// data in a later piece. The piece in which nobody has any more is the last one; where it lies in the half in which the
// next call begins, a hop follows in which each rank tells that it has all results.
//
// Threads: as Runner.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/told_reasons.h"
#include "collectives/algorithms/one_hop/short_hop.h"
#include "collectives/algorithms/row.h"
#include "collectives/algorithms/shared_fold/fold_agreement.h"
#include "collectives/algorithms/shared_fold/fold_program.h"
#include "collectives/reduce/shared_memory.h"

namespace annulus {

extern const AlgorithmRow kSharedFoldRow;

class SharedFold final : public Runner {
 public:
  SharedFold(int rank, const AlgorithmJob& job, const Links* links);
  ~SharedFold() override { Release(); }

  void Start(const ScheduleParams& params, const Work* work) override;
  bool done() const override { return stage_ == Stage::kDone || stage_ == Stage::kDeclined; }
  bool declined() const override { return stage_ == Stage::kDeclined; }
  bool WaitsFor(const Endpoint* endpoint) const override { return !done() && hop_.WaitsFor(endpoint); }
  int AwaitedPeer() const override { return AwaitsDevice() ? -1 : hop_.AwaitedPeer(); }
  bool Arm() override;
  Deadline look_at() const override { return program_.look_at; }
  const std::vector<Endpoint*>& endpoints() const override { return endpoints_; }

  // Bytes that the runner holds for `nranks` ranks.
  static size_t MemoryBytes(int nranks);

 private:
  static constexpr uint8_t kHasMore = 2;

  enum class Stage {
    kOffers,
    kFinds,
    kSends,  // A hop: descriptors that others lack have been sent.
    kFolds,
    kEnds,
    kPieceInput,   // Until the stream has the input of a piece in the shared memory.
    kPieceStarts,  // A hop, as kOffers for the first piece.
    kPieceFolds,   // Until it has done this rank's folds.
    kPieceEnds,    // A hop.
    kPieceOutput,  // Until the output is where the CPU takes it.
    kDone,
    kDeclined
  };

  // What a rank says in the first hop.
  struct Offer {
    SharedPlace input;
    SharedPlace output;
    uint64_t is_shared = 0;
    FoldAgreement::Word in_stream;
  };

  // The same of a program.
  struct ProgramOffer {
    FoldAgreement::Word in_stream;
    uint64_t own_count = 0;                         // Elements of its own part, where all know all of different sizes.
    std::array<uint64_t, kMaxOneHopRanks> sends{};  // Of an exchange: elements for each rank.
    uint64_t has_more = 0;                          // And whether it has data in a later piece.
  };
  static_assert(sizeof(ProgramOffer) <= sizeof(Offer));

  // What a rank says in the second hop.
  struct Finding {
    enum class Has : uint32_t { kNot, kAll, kLacks };
    Has has = Has::kNot;
    uint32_t lacks = 0;  // Ranks whose descriptors it lacks, one bit each.
    SharedAddress to;    // Where it awaits them.
  };

  // The fold of one chunk. Its lists are borrowed by the queue.
  struct Fold {
    std::array<const std::byte*, kMaxOneHopRanks> sources{};
    std::array<std::byte*, kMaxOneHopRanks> destinations{};
    Step step;
    SliceOp op;
    Submission submission;
  };

  // This rank.
  struct Own {
    SharedMemory* shared = nullptr;  // What the call's queue shares; null: host memory.
    DomainQueue* queue = nullptr;
    int device = -1;  // Device of the buffers.
    Offer offer;
    ProgramOffer program;
    Finding finding;
    uint8_t word = 0;  // What it says in later hops: 1 is yes, kHasMore yes and that it has data in a later piece.
  };

  // All ranks, by number: what they have offered, and where it is here.
  struct Ranks {
    std::vector<Offer> offers;
    std::vector<ProgramOffer> programs;
    std::vector<const std::byte*> inputs;
    std::vector<std::byte*> outputs;
    std::vector<FoldAgreement::Word> words;
    std::vector<Finding> findings;
    bool have_sent = false;  // All have sent what others lacked.
  };

  // Where a program is.
  struct Program {
    const StreamFold* fold = nullptr;  // Null: the call is none.
    uint32_t piece = 0;
    uint32_t pieces = UINT32_MAX;    // Of all ranks together; unknown at first where it is an exchange.
    bool is_copied = false;          // The input of the piece, from host memory.
    Nanoseconds asleep_since = 0;    // When the rank first slept for the stream in this stage; 0: it has not.
    Deadline look_at = kNoDeadline;  // When to look at the stream's words again.
    size_t inputs = 0;               // Copies from and to host memory that are done.
    size_t outputs = 0;
    // Of an exchange, the last ones of this rank stay when others have more pieces.
    PieceSteps steps() const { return PieceSteps(fold->first_piece + std::min(piece, fold->pieces - 1)); }
    // Whether this rank may have data in that piece.
    bool HasData(uint32_t of) const { return of + 1 < fold->pieces; }
  };

  struct Folds {
    std::vector<int> chunks;  // Those that this rank folds.
    std::vector<Fold> of;     // By chunk.
    size_t submitted = 0;     // Chunks submitted, in their order.
  };

  Status Advance(bool* moved) override;
  // Begins a hop in which this rank says `bytes` bytes at `data`.
  void StartHop(Stage stage, const void* data, uint32_t bytes);
  // Moves the hop on. Sets *is_over when all have said what they have to say and this rank's word has left.
  Status Hop(bool* moved, bool* is_over);
  Status EndHop();
  Offer MakeOffer();
  ProgramOffer MakeProgramOffer() const;
  // The ends of the hops.
  Status EndOffers();
  void EndFinds();
  // Sends what others have said that they lack.
  bool SendFiles();
  void StartFinds();
  // Bytes of a rank's input and of its output.
  size_t InputBytes() const;
  size_t OutputBytes() const;
  // Finds the chunks that this rank folds.
  void FindFolds();
  // Finds the buffers that they use.
  Finding FindBuffers();
  // Finds those of that rank.
  Status FindBuffersOf(int rank);
  bool AwaitsStream() const {
    return stage_ == Stage::kPieceInput || stage_ == Stage::kPieceFolds || stage_ == Stage::kPieceOutput;
  }
  bool AwaitsDevice() const { return stage_ == Stage::kFolds || AwaitsStream(); }
  // Goes on as far as the stream has come.
  void FollowStream(bool* moved);
  void CopyInput();
  void CopyOutput();
  // Makes the copies of the piece, from *next on.
  void CopyPiece(const std::vector<FoldHostCopy>& copies, size_t* next) const;
  void NextPiece();
  // The end of the first hop of a call in a stream.
  Status EndProgramOffers();
  Status CheckProgram() const;
  Status CheckPart(int rank) const;
  // The end of a hop of an exchange. `more`: some rank has data in a later piece.
  void EndExchange(bool more);
  void EndPieceStarts();
  // Elements that this rank takes that one's part for, where parts differ in size.
  uint64_t PartOf(int rank) const;
  void MakeFold(int chunk);
  Status AdvanceFolds(bool* moved);
  void Decline();
  void Release();

  const int rank_;
  const int nranks_;
  ShortHop hop_;
  std::vector<Endpoint*> endpoints_;
  ScheduleParams params_;
  const Work* work_ = nullptr;
  Work saying_;  // The work with what this rank says as its input.
  Stage stage_ = Stage::kDone;

  Own own_;
  Ranks ranks_;
  Folds folds_;
  Program program_;
  ToldReasons told_;
};

}  // namespace annulus
