#include "collectives/algorithms/log/log_exchange.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace annulus {
namespace {

// Size of all blocks, each padded by less than an element, in whole cache lines.
size_t HalfBytes(int nranks, size_t largest_bytes) {
  const size_t bytes = largest_bytes + static_cast<size_t>(nranks) * kMostElementBytes;
  return (bytes + SlotMemory::kAlignment - 1) / SlotMemory::kAlignment * SlotMemory::kAlignment;
}

}  // namespace

int LogSteps(int nranks) { return std::bit_width(static_cast<unsigned>(nranks) - 1U); }

std::vector<int> LogPeers(int rank, int nranks) {
  std::vector<int> peers;
  for (int distance = 1; distance < nranks; distance *= 2) {
    for (const int peer : {(rank + distance) % nranks, (rank + nranks - distance) % nranks}) {
      if (std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
    }
  }
  return peers;
}

LogExchange::LogExchange(int rank, int nranks, size_t largest_bytes, const Links* links, SlotMemory* staging)
    : Exchange(rank, nranks, links, 2 * LogSteps(nranks)),
      steps_(LogSteps(nranks)),
      memory_(staging, 2 * HalfBytes(nranks, largest_bytes)),
      blocks_(memory_.data()),
      results_(blocks_ + HalfBytes(nranks, largest_bytes)),
      fold_sources_(nranks) {}

size_t LogExchange::MemoryBytes(int nranks, size_t largest_bytes) {
  return sizeof(LogExchange) + 2 * HalfBytes(nranks, largest_bytes) + static_cast<size_t>(nranks) * sizeof(void*) +
         SendsBytes(2 * LogSteps(nranks));
}

void LogExchange::Begin() {
  block_bytes_ = has_data() ? ChunkElements(work_->call.count, nranks_, 0) * work_->element_bytes : 0;
  ANNULUS_CHECK(static_cast<size_t>(nranks_) * block_bytes_ <= static_cast<size_t>(results_ - blocks_));
  stage_ = has_data() ? Stage::kLoad : Stage::kScatter;
  step_ = chunk_ = 0;
}

Status LogExchange::Step(bool* moved) {
  switch (stage_) {
    case Stage::kLoad:
      return Load(moved);
    case Stage::kScatter:
    case Stage::kSpread:
      return SwapBlocks(moved);
    case Stage::kFold:
      return Fold(moved);
    case Stage::kStore:
      return Store(moved);
    case Stage::kFinish:
      if (!SendsComplete()) return Status();
      EnterNextStage();
      *moved = true;
      return Status();
    case Stage::kDone:
      return Status();
  }
  return Status();
}

void LogExchange::EnterNextStage() {
  stage_ = Scatters() && !has_data() ? Stage::kFinish : static_cast<Stage>(static_cast<int>(stage_) + 1);
  step_ = chunk_ = 0;
}

// Data scaled here is not scaled again in the fold.
Status LogExchange::Load(bool* moved) {
  const size_t count = work_->call.count;
  const size_t begin = ChunkBegin(count, nranks_, chunk_) * work_->element_bytes;
  SliceOp op = Copy(BlockOf(blocks_, chunk_), work_->input.data + begin, ChunkElements(count, nranks_, chunk_));
  op.custom = work_->custom;
  if (op.custom.scales) op.scaled_source = 0;
  bool loaded = false;
  ANNULUS_RETURN_IF_ERROR(AdvanceOp(op, work_->input.queue, &loaded));
  if (!loaded) return Status();
  *moved = true;
  if (++chunk_ == nranks_) EnterNextStage();
  return Status();
}

// Block i came from the rank i behind. The order of the ring is that of ranks rank + 1, ..., rank, so of blocks n - 1,
// ..., 0.
Status LogExchange::Fold(bool* moved) {
  for (int i = 0; i < nranks_; ++i) fold_sources_[i] = blocks_ + static_cast<size_t>(nranks_ - 1 - i) * block_bytes_;
  SliceOp op = Copy(results_, fold_sources_[0], ChunkElements(work_->call.count, nranks_, rank_));
  op.num_sources = nranks_;
  op.src = fold_sources_.data();
  op.inline_src[1] = fold_sources_[1];
  op.divisor = work_->divisor;
  op.custom = work_->custom;
  op.custom.scales = false;
  bool folded = false;
  ANNULUS_RETURN_IF_ERROR(AdvanceOp(op, nullptr, &folded));
  if (!folded) return Status();
  *moved = true;
  EnterNextStage();
  return Status();
}

Status LogExchange::Store(bool* moved) {
  const size_t count = work_->call.count;
  const std::byte* const result = BlockOf(results_, chunk_);
  std::byte* const output = work_->output.data + ChunkBegin(count, nranks_, chunk_) * work_->element_bytes;
  bool stored = false;
  const SliceOp op = Copy(output, result, ChunkElements(count, nranks_, chunk_));
  ANNULUS_RETURN_IF_ERROR(AdvanceOp(op, work_->output.queue, &stored));
  if (!stored) return Status();
  *moved = true;
  if (++chunk_ == nranks_) EnterNextStage();
  return Status();
}

template <class Act>
void LogExchange::ForSentBlocks(Act act) const {
  const int distance = 1 << step_;
  if (!Scatters()) {
    for (int block = 0; block < std::min(distance, nranks_ - distance); ++block) act(block);
    return;
  }
  for (int block = distance; block < nranks_; ++block) {
    if ((block & distance) != 0) act(block);
  }
}

size_t LogExchange::SentBytes() const {
  size_t blocks = 0;
  ForSentBlocks([&blocks](int) { ++blocks; });
  return blocks * block_bytes_;
}

Status LogExchange::SwapBlocks(bool* moved) {
  const int message = step_ + (Scatters() ? 0 : steps_);
  const auto pack = [this](std::byte* to) { return PackBlocks(to); };
  bool complete = false;
  ANNULUS_RETURN_IF_ERROR(Swap(PeerOf(1), PeerOf(-1), message, SentBytes(), pack, moved, &complete));
  if (!complete) return Status();
  UnpackBlocks(received().data);
  FinishReceive();
  *moved = true;
  if (++step_ == steps_) EnterNextStage();
  return Status();
}

size_t LogExchange::PackBlocks(std::byte* to) const {
  const std::byte* const begin = to;
  const std::byte* const from = Scatters() ? blocks_ : results_;
  ForSentBlocks([&](int block) {
    if (block_bytes_ > 0) std::memcpy(to, from + static_cast<size_t>(block) * block_bytes_, block_bytes_);
    to += block_bytes_;
  });
  return static_cast<size_t>(to - begin);
}

void LogExchange::UnpackBlocks(const std::byte* from) {
  // In the scatter, blocks keep their numbers; in the spread, arriving blocks follow the own ones.
  const int shift = Scatters() ? 0 : 1 << step_;
  std::byte* const to = Scatters() ? blocks_ : results_;
  ForSentBlocks([&](int block) {
    if (block_bytes_ > 0) std::memcpy(to + static_cast<size_t>(block + shift) * block_bytes_, from, block_bytes_);
    from += block_bytes_;
  });
}

}  // namespace annulus
