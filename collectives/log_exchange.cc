#include "collectives/log_exchange.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace annulus {
namespace {

constexpr size_t kAlignment = 64;      // As slots have it.
constexpr size_t kLargestElement = 8;  // Bytes.

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// All blocks, each padded by less than an element.
size_t HalfBytes(int nranks, size_t largest_bytes) {
  return RoundUp(largest_bytes + static_cast<size_t>(nranks) * kLargestElement);
}

int StepsOf(int nranks) { return std::bit_width(static_cast<unsigned>(nranks) - 1U); }

}  // namespace

std::vector<int> LogPeers(int rank, int nranks) {
  std::vector<int> peers;
  for (int distance = 1; distance < nranks; distance *= 2) {
    for (const int peer : {(rank + distance) % nranks, (rank + nranks - distance) % nranks}) {
      if (std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
    }
  }
  return peers;
}

LogExchange::LogExchange(int rank, int nranks, size_t largest_bytes, const Links* links)
    : rank_(rank), nranks_(nranks), links_(links), steps_(StepsOf(nranks)), fold_sources_(nranks) {
  ANNULUS_CHECK(nranks > 1 && steps_ <= kMostSteps);
  const size_t half = HalfBytes(nranks, largest_bytes);
  memory_.resize(2 * half + kAlignment);
  const size_t address = reinterpret_cast<size_t>(memory_.data());
  blocks_ = memory_.data() + (RoundUp(address) - address);
  results_ = blocks_ + half;
  endpoints_.reserve(2 * kMostSteps + 2);
}

size_t LogExchange::MemoryBytes(int nranks, size_t largest_bytes) {
  const size_t pointers = static_cast<size_t>(nranks) + 2 * kMostSteps + 2;
  return sizeof(LogExchange) + 2 * HalfBytes(nranks, largest_bytes) + kAlignment + pointers * sizeof(void*);
}

void LogExchange::Start(const Work* work) {
  ANNULUS_CHECK(done());
  work_ = work;
  const bool has_data = work->call.kind != CollectiveKind::kBarrier;
  block_bytes_ = has_data ? ChunkElements(work->call.count, nranks_, 0) * work->element_bytes : 0;
  ANNULUS_CHECK(static_cast<size_t>(nranks_) * block_bytes_ <= static_cast<size_t>(results_ - blocks_));
  stage_ = has_data ? Stage::kLoad : Stage::kScatter;
  step_ = chunk_ = sends_posted_ = 0;
  ticket_ = Device::kCompleted;
  slot_ = nullptr;
  submitted_ = send_posted_ = recv_posted_ = verified_ = false;
  FindEndpoints();
}

int LogExchange::TargetRank(int send) const {
  const int distance = 1 << send % steps_;
  return RankAt(send < steps_ ? distance : -distance);
}

int LogExchange::AwaitedPeer() const {
  if (stage_ == Stage::kScatter || stage_ == Stage::kSpread) return PeerOf(send_posted_ ? -1 : 1);
  for (int i = 0; i < sends_posted_ && !done(); ++i) {
    if (sends_[i].code != Code::kOk) return TargetRank(i);
  }
  return -1;
}

bool LogExchange::WaitsFor(const Endpoint* endpoint) const {
  if (done()) return false;
  for (int i = 0; i < sends_posted_; ++i) {
    if (links_->At(TargetRank(i), 0) == endpoint && sends_[i].code != Code::kOk) return true;
  }
  return recv_posted_ && recv_.code != Code::kOk && links_->At(PeerOf(-1), 0) == endpoint;
}

void LogExchange::FindEndpoints() {
  endpoints_.clear();
  const auto add = [this](Endpoint* endpoint) {
    if (std::find(endpoints_.begin(), endpoints_.end(), endpoint) == endpoints_.end()) endpoints_.push_back(endpoint);
  };
  if (stage_ == Stage::kScatter || stage_ == Stage::kSpread) {
    add(links_->At(PeerOf(-1), 0));
    if (!send_posted_) add(links_->At(PeerOf(1), 0));
  }
  for (int i = 0; i < sends_posted_; ++i) {
    if (sends_[i].code != Code::kOk) add(links_->At(TargetRank(i), 0));
  }
}

Status LogExchange::Advance(bool* moved) {
  for (bool stepped = true; stepped && !done();) {
    stepped = false;
    ANNULUS_RETURN_IF_ERROR(Step(&stepped));
    if (stepped) *moved = true;
  }
  FindEndpoints();
  return Status();
}

Status LogExchange::Step(bool* moved) {
  switch (stage_) {
    case Stage::kLoad:
      return Load(moved);
    case Stage::kScatter:
    case Stage::kSpread:
      return Exchange(moved);
    case Stage::kFold:
      return Fold(moved);
    case Stage::kStore:
      return Store(moved);
    case Stage::kFinish:
      for (int i = 0; i < sends_posted_; ++i) {
        if (sends_[i].code != Code::kOk) return Status();
      }
      for (int i = 0; i < sends_posted_; ++i) work_->monitor->Sent(TargetRank(i), sends_[i].bytes);
      EnterNextStage();
      *moved = true;
      return Status();
    case Stage::kDone:
      return Status();
  }
  return Status();
}

void LogExchange::EnterNextStage() {
  const bool has_data = work_->call.kind != CollectiveKind::kBarrier;
  stage_ = stage_ == Stage::kScatter && !has_data ? Stage::kFinish : static_cast<Stage>(static_cast<int>(stage_) + 1);
  step_ = chunk_ = 0;
}

// Submits `op`, or sees how it goes. *moved when it is complete.
Status LogExchange::Run(const SliceOp& op, bool* moved) {
  if (!submitted_ && op.count > 0) {
    Status submitted = work_->device->Submit(op, &ticket_);
    if (submitted.would_block()) return Status();
    ANNULUS_RETURN_IF_ERROR(std::move(submitted));
    submitted_ = true;
  }
  bool complete = false;
  ANNULUS_RETURN_IF_ERROR(work_->device->Poll(ticket_, &complete));
  if (!complete) return Status();
  ticket_ = Device::kCompleted;
  submitted_ = false;
  *moved = true;
  return Status();
}

SliceOp LogExchange::Copy(std::byte* to, const std::byte* from, size_t elements) const {
  SliceOp op;
  op.dst[0] = to;
  op.inline_src[0] = from;
  op.num_sources = 1;
  op.count = elements;
  op.type = work_->type;
  op.op = work_->op;
  return op;
}

// What was scaled here is not scaled again in the fold.
Status LogExchange::Load(bool* moved) {
  const size_t count = work_->call.count;
  const size_t begin = ChunkBegin(count, nranks_, chunk_) * work_->element_bytes;
  SliceOp op = Copy(BlockOf(blocks_, chunk_), work_->input + begin, ChunkElements(count, nranks_, chunk_));
  op.custom = work_->custom;
  if (op.custom.scales) op.scaled_source = 0;
  bool loaded = false;
  ANNULUS_RETURN_IF_ERROR(Run(op, &loaded));
  if (!loaded) return Status();
  *moved = true;
  if (++chunk_ == nranks_) EnterNextStage();
  return Status();
}

// Block i came from the rank i behind: the ring's order is that of ranks rank + 1, ..., rank, so of blocks n - 1, ...,
// 0.
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
  ANNULUS_RETURN_IF_ERROR(Run(op, &folded));
  if (!folded) return Status();
  *moved = true;
  EnterNextStage();
  return Status();
}

Status LogExchange::Store(bool* moved) {
  const size_t count = work_->call.count;
  const std::byte* const result = BlockOf(results_, chunk_);
  std::byte* const output = work_->output + ChunkBegin(count, nranks_, chunk_) * work_->element_bytes;
  bool stored = false;
  ANNULUS_RETURN_IF_ERROR(Run(Copy(output, result, ChunkElements(count, nranks_, chunk_)), &stored));
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

Tag LogExchange::TagOfStep() const {
  return PackTag(work_->call, {0, static_cast<uint64_t>(step_ + (Scatters() ? 0 : steps_)), 0});
}

Status LogExchange::Exchange(bool* moved) {
  if (!recv_posted_) {
    recv_ = Recv();
    recv_.capacity = static_cast<uint32_t>(SentBytes());
    Status posted = links_->At(PeerOf(-1), 0)->PostRecv(&recv_);
    if (!posted.ok() && !posted.would_block()) return posted;
    recv_posted_ = posted.ok();
    if (recv_posted_) *moved = true;
  }
  if (!send_posted_) ANNULUS_RETURN_IF_ERROR(SendBlocks(moved));
  if (recv_posted_ && recv_.started && !verified_) ANNULUS_RETURN_IF_ERROR(Verify(TagOfStep()));
  if (!send_posted_ || !verified_ || recv_.code != Code::kOk) return Status();
  return ReceiveBlocks(moved);
}

Status LogExchange::SendBlocks(bool* moved) {
  Endpoint* const target = links_->At(PeerOf(1), 0);
  Send& send = sends_[sends_posted_];
  if (slot_ == nullptr) {
    Status acquired = target->AcquireSlot(&slot_);
    if (acquired.would_block()) return Status();
    ANNULUS_RETURN_IF_ERROR(std::move(acquired));
    std::byte* to = slot_;
    const std::byte* const from = Scatters() ? blocks_ : results_;
    ForSentBlocks([&](int block) {
      if (block_bytes_ > 0) std::memcpy(to, from + static_cast<size_t>(block) * block_bytes_, block_bytes_);
      to += block_bytes_;
    });
    send = Send();
    send.tag = TagOfStep();
    send.data = slot_;
    send.bytes = send.ready = static_cast<uint32_t>(to - slot_);
  }
  Status posted = target->PostSend(&send);
  if (posted.would_block()) return Status();
  ANNULUS_RETURN_IF_ERROR(std::move(posted));
  slot_ = nullptr;
  ++sends_posted_;
  send_posted_ = *moved = true;
  return Status();
}

Status LogExchange::Verify(const Tag& expected) {
  const int peer = PeerOf(-1);
  if (recv_.tag != expected) return ExplainTag(expected, recv_.tag, peer);
  if (recv_.bytes != recv_.capacity) {
    return {Code::kProtocol,
            "rank " + std::to_string(peer) + " sent " + std::to_string(recv_.bytes) + " bytes where " +
                std::to_string(recv_.capacity) + " belong",
            peer, 0};
  }
  verified_ = true;
  return Status();
}

Status LogExchange::ReceiveBlocks(bool* moved) {
  const std::byte* from = recv_.data;
  // In the scatter blocks keep their numbers, in the spread they lie behind the own ones.
  const int shift = Scatters() ? 0 : 1 << step_;
  std::byte* const to = Scatters() ? blocks_ : results_;
  ForSentBlocks([&](int block) {
    if (block_bytes_ > 0) std::memcpy(to + static_cast<size_t>(block + shift) * block_bytes_, from, block_bytes_);
    from += block_bytes_;
  });
  work_->monitor->Received(PeerOf(-1), recv_.bytes);
  links_->At(PeerOf(-1), 0)->Release(&recv_);
  send_posted_ = recv_posted_ = verified_ = false;
  *moved = true;
  if (++step_ == steps_) EnterNextStage();
  return Status();
}

}  // namespace annulus
