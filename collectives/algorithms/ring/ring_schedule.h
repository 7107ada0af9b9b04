// The schedules of the ring, each for some kinds of collectives.
//
// RingSchedule   allreduce, reduce_scatter, allgather and their variants: the ring of P. Patarasuk and X. Yuan,
//                "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009): a reduce-scatter of
//                nranks - 1 hops and an allgather of nranks - 1 hops.
// ChainSchedule  broadcast and reduce: a pipelined chain of all ranks from or to the root.
// TokenSchedule  barrier: a token that goes round twice.
// LocalSchedule  any of them with one rank: a copy.
//
// Threads: immutable values.
#pragma once

#include <variant>

#include "collectives/core/chunk_schedule.h"

namespace annulus {

class RingSchedule final : public ChunkSchedule {
 public:
  RingSchedule() = default;
  RingSchedule(const ScheduleParams& params, int channel);
  bool At(size_t index, Step* step) const override;

 private:
  uint64_t SliceOf(const Position& at) const { return at.slice * p_.channels + channel_; }

  int channel_ = 0;
  int phases_ = 0;
  uint64_t slices_ = 0;  // Slices of the channel.
};

class ChainSchedule final : public ChunkSchedule {
 public:
  ChainSchedule() = default;
  ChainSchedule(const ScheduleParams& params, int channel);
  bool At(size_t index, Step* step) const override;

 private:
  int channel_ = 0;
};

class TokenSchedule final : public ChunkSchedule {
 public:
  TokenSchedule() = default;
  TokenSchedule(const ScheduleParams& params, int channel);
  bool At(size_t index, Step* step) const override;
};

class LocalSchedule final : public ChunkSchedule {
 public:
  LocalSchedule() = default;
  LocalSchedule(const ScheduleParams& params, int channel);
  bool At(size_t index, Step* step) const override;
};

// The schedule of one channel, by the kind of call.
using AnyRingSchedule = std::variant<RingSchedule, ChainSchedule, TokenSchedule, LocalSchedule>;
AnyRingSchedule MakeRingSchedule(const ScheduleParams& params, int channel);

}  // namespace annulus
