#include "collectives/algorithms/two_hop/two_hop_schedule.h"

#include <algorithm>

namespace annulus {

TwoHopSchedule::TwoHopSchedule(const ScheduleParams& params, int ahead) : ChunkSchedule(params) {
  folds_ = Reduces(p_.kind);
  gathers_ = !IsReduceScatter(p_.kind);
  slices_ = Slices();
  ahead_ = std::min<uint64_t>(slices_, static_cast<uint64_t>(std::max(ahead, 1)));
  size_ = slices_;
}

TwoHopSchedule::Item TwoHopSchedule::ItemAt(uint64_t item) const {
  if (!folds_) return {true, item};
  if (!gathers_ || item < ahead_) return {false, item};
  const uint64_t later = item - ahead_;
  const uint64_t turns = slices_ - ahead_;
  if (later >= 2 * turns) return {true, later - turns};
  return {later % 2 == 0, later / 2 + (later % 2 == 0 ? 0 : ahead_)};
}

bool TwoHopSchedule::SendAt(int peer, uint64_t item, Step* step) const {
  Reset(step);
  const Item at = ItemAt(item);
  step->send_to = peer;
  step->from_output = at.is_result && folds_;
  return Place(static_cast<uint32_t>(at.is_result ? p_.rank : peer), at.slice, step);
}

bool TwoHopSchedule::ReceiveAt(int peer, uint64_t item, Step* step) const {
  Reset(step);
  const Item at = ItemAt(item);
  step->recv_from = peer;
  step->store = at.is_result;
  if (!at.is_result) step->kind = Step::Kind::kHold;
  return Place(static_cast<uint32_t>(at.is_result ? peer : p_.rank), at.slice, step);
}

bool TwoHopSchedule::At(size_t slice, Step* step) const {
  Reset(step);
  step->store = true;
  if (folds_) {
    step->kind = Step::Kind::kFold;
    step->finish = true;
    step->first_rank = Ring(p_.rank + 1);
  }
  return Place(static_cast<uint32_t>(p_.rank), slice, step);
}

}  // namespace annulus
