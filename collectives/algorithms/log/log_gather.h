// LogGather: an allreduce of few bytes, or a barrier, over few ranks in ceil(log2 n) messages per rank. Its result has
// the bits of the ring.
//
// An allgather after J. Bruck et al. (1997) brings every rank all inputs, and each rank folds them in the order of the
// ring. A rank sends n - 1 times the data, as in the one-hop exchange, but in fewer messages, which dominate the cost
// over TCP.
//
// Block i of a rank is the input of the rank i behind. In step k a rank sends its first 2^k blocks to the rank 2^k
// ahead. Step 0 goes along the ring, as the first slice of a ring does: there ranks detect that they disagree about the
// call.
//
// Threads: one at a time. Start and Advance allocate nothing, lock nothing and never block.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/algorithms/exchange.h"
#include "collectives/algorithms/row.h"
#include "transport/memory/slot_memory.h"

namespace annulus {

extern const AlgorithmRow kLogGatherRow;

class LogGather final : public Exchange {
 public:
  // For calls of up to `largest_bytes`. `links` outlives it and has links on channel 0 to LogPeers; so does `staging`,
  // which may be null (SlotBlock).
  LogGather(int rank, int nranks, size_t largest_bytes, const Links* links, SlotMemory* staging);

  // Bytes that a gather holds.
  static size_t MemoryBytes(int nranks, size_t largest_bytes);

  bool done() const override { return stage_ == Stage::kDone; }

 private:
  enum class Stage { kLoad, kSwap, kFold, kFinish, kDone };

  void Begin() override;
  Status Step(bool* moved) override;
  Status Load(bool* moved);
  Status SwapBlocks(bool* moved);
  Status Fold(bool* moved);
  size_t SentBytes() const;
  std::byte* BlockOf(int rank) { return blocks_ + static_cast<size_t>((rank_ - rank + nranks_) % nranks_) * bytes_; }

  const size_t capacity_;
  ZeroedSlotBlock memory_;
  std::byte* const blocks_;  // nranks blocks, aligned to a cache line.
  std::vector<const std::byte*> fold_sources_;

  size_t bytes_ = 0;
  Stage stage_ = Stage::kDone;
  int step_ = 0;
  int chunk_ = 0;  // Next chunk to fold.
};

}  // namespace annulus
