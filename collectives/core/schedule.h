// Schedule: which slices a rank receives, reduces, stores and sends in one collective, and in which order.
//
// Pure: no I/O, no clock, no types. Steps are computed from their index, so a schedule takes no memory however large
// the message. Each algorithm has its own schedule in its folder (collectives/algorithms). The rules below are checked
// exhaustively by a symbolic run (tests/collectives/algorithms/schedule_test.cc).
//
// Chunks. An allreduce cuts the elements into nranks chunks, whatever the slice size, channels or algorithm. Chunk c is
// folded in the order of ranks c+1, c+2, ..., c, so the bits of the result depend on count and nranks alone.
//
// Slices and rounds. Chunks are cut into slices; slice s belongs to channel s mod channels. A channel works in rounds
// of up to `round_slices` slices per chunk: phase by phase, and within a phase slice by slice. So at most round_slices
// slices per link direction wait for a later phase, and links with at least round_slices + 1 slots never deadlock,
// provided that more than 2 * round_slices steps may be in flight (links of one kind do with 2 * round_slices).
//
// Slice 0 of a chunk exists even when the chunk is empty. So every collective exchanges at least one tag on every link
// it uses, and detects calls that disagree where both use that link; Control::Doubt detects the others.
//
// Threads: a Schedule is an immutable value.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/core/algorithm.h"
#include "collectives/core/collective.h"
#include "collectives/core/host_grid.h"

namespace annulus {

// Most ranks for the one-hop exchange. Beyond this it would need too many links, and small messages use the ring too.
constexpr int kMaxOneHopRanks = 16;

// One rank's part of a buffer, in elements.
struct Part {
  size_t begin = 0;
  size_t elements = 0;
};

struct Step {
  enum class Kind : uint8_t {
    kRelay,  // [receive,] [reduce with the input,] [store to the output,] [send]; at least one of them.
    // The following two are used by the exchanges in one and two hops only.
    kHold,  // Receive, and keep the arrival for a kFold of this schedule.
    kFold,  // Output range = fold of the held arrivals and the own input over all ranks from first_rank on. Waits for
            // all steps before it.
  };
  Kind kind = Kind::kRelay;
  bool reduce = false;
  bool store = false;
  bool finish = false;  // The result is a complete reduction.
  // kTwoLevel, kTwoHop: the data it sends or reduces with is in the output, not in the input.
  bool from_output = false;
  int recv_from = -1;
  int send_to = -1;
  uint32_t chunk = 0;  // With `slice`, names the slice on the wire.
  uint64_t slice = 0;
  uint64_t count = 0;         // Elements of the call or, where parts may differ, of the part. Both ends must agree.
  size_t input_offset = 0;    // Offset in the input, in bytes.
  size_t output_offset = 0;   // Offset in the output, in bytes.
  size_t arrival_offset = 0;  // kFold: offset within each held arrival, in bytes.
  size_t bytes = 0;
  int first_rank = 0;      // kFold: first rank of the fold.
  bool is_copied = false;  // kDirect: sent out of a slot, since the receiver may take it by a short path (OneHop).
  uint64_t awaits = 0;     // kTwoLevel: steps of the other level that must be done before this step works or sends.
};

struct ScheduleParams {
  CollectiveKind kind = CollectiveKind::kNone;
  Algorithm algorithm = Algorithm::kRing;
  Algorithm if_declined = Algorithm::kRing;  // What takes the call when the algorithm's runner declines it.
  int rank = 0;
  int nranks = 1;
  int root = 0;
  size_t count = 0;  // Elements, as in the C API: per rank for reduce_scatter and allgather.
  size_t element_bytes = 1;
  size_t slice_bytes = 1;  // Largest slice; a multiple of element_bytes. Unused by kOneHop.
  int round_slices = 1;
  int channels = 1;
  // Parts by rank; they outlive the schedule. Direct kinds: the data to and from that rank. With variable parts: the
  // parts of reduce_scatterv's input or allgatherv's output. A group: its chunks as input_parts. Otherwise null.
  const Part* input_parts = nullptr;
  const Part* output_parts = nullptr;
  // kDirect, where parts may differ: the largest part with which a rank may be in one hop, in bytes.
  size_t one_hop_bytes = 0;
  // kDirect: set by FillRoundEnds (direct_schedule.h).
  const uint64_t* round_ends = nullptr;
  // kTwoLevel: the rings of this rank; the product of their sizes is nranks. `channels` is 1.
  RankRing inner;
  RankRing outer;
};

class Schedule {
 public:
  virtual ~Schedule() = default;

  size_t size() const { return size_; }

  // Sets *step to step number `index` < size(). Returns false when that step is empty: then skip it.
  virtual bool At(size_t index, Step* step) const = 0;

 protected:
  Schedule() = default;
  Schedule(const Schedule&) = default;
  Schedule& operator=(const Schedule&) = default;

  size_t size_ = 0;
};

// Elements of `chunk` when `count` elements are cut into nranks chunks; the first chunks are larger by one.
size_t ChunkElements(size_t count, int nranks, uint32_t chunk);
// First element of `chunk`.
size_t ChunkBegin(size_t count, int nranks, uint32_t chunk);

}  // namespace annulus
