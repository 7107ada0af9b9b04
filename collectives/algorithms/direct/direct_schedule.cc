#include "collectives/algorithms/direct/direct_schedule.h"

#include <algorithm>

#include "collectives/core/chunk_schedule.h"

namespace annulus {
namespace {

// Whether slices go from one rank to the other; from a rank to itself it is a copy.
bool Exchanges(const ScheduleParams& p, int from, int to) {
  return IsAlltoall(p.kind) || (IsGather(p.kind) ? to : from) == p.root;
}

int Ahead(const ScheduleParams& p, int rounds) { return (p.rank + rounds) % p.nranks; }
int Behind(const ScheduleParams& p, int rounds) { return (p.rank + p.nranks - rounds) % p.nranks; }

}  // namespace

void FillRoundEnds(const ScheduleParams& p, uint64_t* ends) {
  uint64_t steps = 0;
  for (int k = 0; k < p.nranks; ++k) {
    const int to = Ahead(p, k);
    const int from = Behind(p, k);
    const uint64_t sent = Exchanges(p, p.rank, to) ? SlicesOf(p, p.input_parts[to]) : 0;
    const uint64_t received = Exchanges(p, from, p.rank) ? SlicesOf(p, p.output_parts[from]) : 0;
    steps += 2 * std::max(sent, received);
    ends[k] = steps;
  }
}

DirectSchedule::DirectSchedule(const ScheduleParams& params, int channel) : p_(params) {
  size_ = channel == 0 ? p_.round_ends[p_.nranks - 1] : 0;
}

bool DirectSchedule::At(size_t index, Step* step) const {
  *step = Step();
  const uint64_t* ends = p_.round_ends;
  const int k = static_cast<int>(std::upper_bound(ends, ends + p_.nranks, index) - ends);
  const size_t within = index - (k > 0 ? ends[k - 1] : 0);
  const bool receives = within % 2 == 1;
  const int peer = receives ? Behind(p_, k) : Ahead(p_, k);
  if (receives ? k == 0 || !Exchanges(p_, peer, p_.rank) : !Exchanges(p_, p_.rank, peer)) return false;
  const Part& part = receives ? p_.output_parts[peer] : p_.input_parts[peer];
  step->slice = within / 2;
  if (step->slice >= SlicesOf(p_, part)) return false;
  const size_t begin = step->slice * p_.slice_bytes;
  step->chunk = receives ? peer : p_.rank;
  step->count = part.elements;
  const size_t part_bytes = part.elements * p_.element_bytes;
  step->bytes = std::min(p_.slice_bytes, part_bytes - begin);
  step->is_copied = part_bytes <= p_.one_hop_bytes;
  (receives ? step->output_offset : step->input_offset) = part.begin * p_.element_bytes + begin;
  if (k == 0) step->output_offset = p_.output_parts[peer].begin * p_.element_bytes + begin;
  step->store = receives || k == 0;
  if (receives) step->recv_from = peer;
  if (!receives && k > 0) step->send_to = peer;
  return true;
}

}  // namespace annulus
