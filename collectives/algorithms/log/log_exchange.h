// LogExchange: an allreduce of few bytes over many ranks in 2 * ceil(log2 n) messages per rank. Its result has the bits
// of the ring.
//
// An all-to-all brings each rank all inputs of its own chunk. The rank folds them in the order of the ring, and an
// allgather spreads the results. Both run in log steps, after J. Bruck et al., "Efficient algorithms for all-to-all
// communications in multiport message-passing systems" (1997). A rank sends about (log2(n) / 2 + 1) times the data; the
// 2(n-1) hops of the ring cost more as long as latency dominates. A barrier is the first half without data.
//
// All blocks have the size of the largest chunk: chunks differ by one element, and the padding of the smaller ones
// never reaches the user. Block i of a rank holds the data for the rank i ahead. In step k, blocks whose number has bit
// k set move on by 2^k ranks and keep their number, so in the end block i came from the rank i behind. Step 0 goes
// along the ring, as the first slice of a ring does: there ranks detect that they disagree about the call.
//
// Threads: one at a time. Start and Advance allocate nothing, lock nothing and never block.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/algorithms/exchange.h"
#include "collectives/algorithms/row.h"
#include "transport/memory/slot_memory.h"

namespace annulus {

extern const AlgorithmRow kLogStepsRow;

class LogExchange final : public Exchange {
 public:
  // For calls of up to `largest_bytes`. `links` outlives it and has links on channel 0 to LogPeers; so does `staging`,
  // which may be null (SlotBlock).
  LogExchange(int rank, int nranks, size_t largest_bytes, const Links* links, SlotMemory* staging);

  // Bytes that an exchange holds.
  static size_t MemoryBytes(int nranks, size_t largest_bytes);

  bool done() const override { return stage_ == Stage::kDone; }

 private:
  enum class Stage { kLoad, kScatter, kFold, kSpread, kStore, kFinish, kDone };

  void Begin() override;
  Status Step(bool* moved) override;
  Status Load(bool* moved);
  Status Fold(bool* moved);
  Status Store(bool* moved);
  Status SwapBlocks(bool* moved);
  size_t PackBlocks(std::byte* to) const;
  void UnpackBlocks(const std::byte* from);
  void EnterNextStage();
  bool Scatters() const { return stage_ == Stage::kScatter; }
  std::byte* BlockOf(std::byte* blocks, int chunk) const {
    return blocks + static_cast<size_t>((chunk - rank_ + nranks_) % nranks_) * block_bytes_;
  }
  // Rank that step_ sends to (sign 1) or receives from (-1).
  int PeerOf(int sign) const { return (rank_ + (Scatters() ? sign : -sign) * (1 << step_) + nranks_) % nranks_; }
  // Calls act(block) for each block that step_ sends (and, in the scatter, receives in its place).
  template <class Act>
  void ForSentBlocks(Act act) const;
  size_t SentBytes() const;

  const int steps_;  // Number of steps of each half.
  ZeroedSlotBlock memory_;
  std::byte* const blocks_;   // nranks blocks, aligned to a cache line.
  std::byte* const results_;  // Block i: result of the chunk of the rank i ahead.
  std::vector<const std::byte*> fold_sources_;

  size_t block_bytes_ = 0;
  Stage stage_ = Stage::kDone;
  int step_ = 0;   // Step of the current half.
  int chunk_ = 0;  // Next chunk to load or store.
};

// Number of steps of a half: ceil(log2 n).
int LogSteps(int nranks);

// Peers of a rank: the ranks that are a power of two ahead or behind, each once.
std::vector<int> LogPeers(int rank, int nranks);

}  // namespace annulus
