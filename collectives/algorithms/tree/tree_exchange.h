// TreeExchange: an allreduce of few bytes, or a barrier, over many ranks: up a tree to rank 0 and back down.
//
// It takes 2(n-1) messages in all, where log steps take 2 n log2(n); most ranks send one message and receive one. So it
// keeps the cores and the network less busy, and finishes sooner as long as the number of messages dominates the cost.
//
// Each rank of the tree (core/rank_tree.h) folds its own data first, then the data of its children in the order of
// their ranks: left operands come from lower ranks. This order differs from that of the ring; it depends only on the
// number of ranks (docs/determinism.md).
//
// Threads: one at a time. Start and Advance allocate nothing, lock nothing and never block.
#pragma once

#include <vector>

#include "collectives/algorithms/exchange.h"
#include "collectives/algorithms/row.h"
#include "collectives/core/rank_tree.h"
#include "transport/memory/slot_memory.h"

namespace annulus {

extern const AlgorithmRow kTreeRow;

class TreeExchange final : public Exchange {
 public:
  // For calls of up to `largest_bytes`. `links` outlives it and has links on channel 0 to parent and children; so does
  // `staging`, which may be null (SlotBlock).
  TreeExchange(int rank, int nranks, size_t largest_bytes, const Links* links, SlotMemory* staging);

  // Most bytes that an exchange holds.
  static size_t MemoryBytes(int nranks, size_t largest_bytes);

  bool done() const override { return stage_ == Stage::kDone; }

 private:
  enum class Stage { kGather, kFold, kSendUp, kReceiveDown, kSendDown, kStore, kFinish, kDone };

  void Begin() override;
  Status Step(bool* moved) override;
  Status Gather(bool* moved);
  Status Fold(bool* moved);
  Status SendUp(bool* moved);
  Status ReceiveDown(bool* moved);
  Status SendDown(bool* moved);
  Status Store(bool* moved);
  void Enter(Stage stage);
  std::byte* ArrivalOf(size_t child) { return result_ + (child + 1) * stride_; }

  const int parent_;
  const std::vector<int> children_;
  const size_t stride_;
  ZeroedSlotBlock memory_;
  std::byte* const result_;  // Aligned to a cache line; the children's data follows it.
  std::vector<const std::byte*> sources_;
  size_t bytes_ = 0;
  Stage stage_ = Stage::kDone;
  size_t child_ = 0;  // Number of children received from or sent to.
};

}  // namespace annulus
