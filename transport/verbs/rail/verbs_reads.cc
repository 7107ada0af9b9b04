#include "transport/verbs/rail/verbs_reads.h"

#include <cerrno>
#include <utility>

#include "base/check.h"

namespace annulus {
namespace {

// One thread writes.
void AddTo(std::atomic<uint64_t>* total, uint64_t more) {
  total->store(total->load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

}  // namespace

void VerbsReads::Add(size_t rail, uint32_t slot, const VerbsHeader& header, const VerbsPlace& place) {
  Rail& on = rails_[rail];
  ANNULUS_CHECK(on.size < on.waiting.size());
  slices_[slot] = {State::kWaiting, rail, header.sequence, header.bytes, place, nullptr, kNoVerbsUse, -1, {}};
  on.waiting[(on.first + on.size++) % on.waiting.size()] = slot;
  ++num_waiting_;
}

bool VerbsReads::Next(size_t rail, Waiting* next) const {
  const Rail& on = rails_[rail];
  if (on.size == 0 || on.under_way == on.most) return false;
  const uint32_t slot = on.waiting[on.first];
  *next = {slot, slices_[slot].number, slices_[slot].bytes};
  return true;
}

void VerbsReads::Begin(size_t rail, std::byte* landing) {
  Rail& on = rails_[rail];
  const uint32_t slot = on.waiting[on.first];
  on.first = (on.first + 1) % on.waiting.size();
  --on.size;
  --num_waiting_;
  Slice& slice = slices_[slot];
  slice.state = State::kUnderWay;
  ++on.under_way;
  if (landing != nullptr && on.regions.all != nullptr)
    slice.use = on.regions.all->AcquireLanding(on.regions, landing, slice.bytes);
  const bool lands = slice.use != kNoVerbsUse;
  slice.landing = lands ? landing : nullptr;
  slice.flushed_gpu = lands ? on.regions.all->FlushedGpu(slice.use) : -1;
  if (lands) ++landings_under_way_;
  std::byte* const to = lands ? landing : recv_slots_->At(slot) + kVerbsHeaderBytes;
  if (!on.pair->exists()) return;
  const uint32_t key = lands ? on.regions.all->KeysOf(slice.use, on.regions.port).local : on.key;
  on.pair->MakeRead(slot, slice.place, to, slice.bytes, key, &slice.read);
  (on.first_unposted == nullptr ? on.first_unposted : on.last_unposted->next) = &slice.read.request;
  on.last_unposted = &slice.read.request;
}

void VerbsReads::Post() {
  for (Rail& on : rails_) {
    ibv_send_wr* const first = std::exchange(on.first_unposted, nullptr);
    if (first == nullptr) continue;
    ibv_send_wr* bad = nullptr;
    const int error = on.pair->PostSends(first, &bad);
    if (error == 0) continue;
    fault_->Set("posting a READ", 0, error);
    for (; bad != nullptr; bad = bad->next) OnFailure(static_cast<uint32_t>(bad->wr_id) & VerbsHub::kMostValue);
  }
}

void VerbsReads::OnCompletion(uint32_t slot) {
  if (slot >= slices_.size() || slices_[slot].state != State::kUnderWay) {
    return fault_->Set("a completion of a READ that was not posted", slot);
  }
  const Slice& slice = slices_[slot];
  const int gpu = slice.flushed_gpu;
  if (gpu >= 0 && !rails_[slice.rail].regions.all->FlushWrites(gpu).ok()) {
    fault_->Set("letting a GPU see what was read for it", slot, EIO);
    return End(slot, State::kNone);  // It has not arrived: where the link goes on, it comes again.
  }
  Counts& counts = rails_[slice.rail].counts;
  ++counts.slices;
  counts.bytes += slice.bytes;
  if (slice.landing != nullptr) counts.landed_bytes += slice.bytes;
  AddTo(&read_bytes_, slice.bytes);
  if (slice.landing != nullptr) AddTo(&landed_bytes_, slice.bytes);
  End(slot, State::kDone);
}

void VerbsReads::End(uint32_t slot, State state) {
  if (slot >= slices_.size() || slices_[slot].state != State::kUnderWay) return;
  Slice& slice = slices_[slot];
  slice.state = state;
  --rails_[slice.rail].under_way;
  if (slice.landing != nullptr) --landings_under_way_;
  LetGoOfLanding(&slice);
}

void VerbsReads::LetGoOfLanding(Slice* slice) {
  if (slice->use != kNoVerbsUse) rails_[slice->rail].regions.all->LetGo(std::exchange(slice->use, kNoVerbsUse));
}

void VerbsReads::LetGoOfLandings() {
  for (Slice& slice : slices_) LetGoOfLanding(&slice);
}

std::byte* VerbsReads::Finish(uint32_t slot) {
  ANNULUS_CHECK(IsDone(slot));
  slices_[slot].state = State::kNone;
  return slices_[slot].landing;
}

}  // namespace annulus
