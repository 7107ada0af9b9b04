#include "collectives/algorithms/one_hop/one_hop_schedule.h"

namespace annulus {

OneHopSchedule::OneHopSchedule(const ScheduleParams& params, int channel) : ChunkSchedule(params) {
  size_ = channel == 0 ? 3 * static_cast<size_t>(p_.nranks) : 0;
}

bool OneHopSchedule::At(size_t index, Step* step) const {
  Reset(step);
  const int n = p_.nranks;
  const int position = static_cast<int>(index);
  if (position >= 2 * n) return Fold(position - 2 * n, step);
  const int which = position / 2;
  if (which == 0) return position == 0 && CopyOwn(step);
  return position % 2 == 1 ? Receive(Ring(p_.rank - which), step) : Send(Ring(p_.rank + which), step);
}

bool OneHopSchedule::Sends(int from, int to) const {
  if (!HasRoot(p_.kind)) return true;
  const bool to_root = p_.kind == CollectiveKind::kReduce || IsGather(p_.kind);
  return (to_root ? to : from) == p_.root;
}

bool OneHopSchedule::Send(int to, Step* step) const {
  if (!Sends(p_.rank, to)) return false;
  step->send_to = to;
  step->chunk = p_.rank;
  PlaceInput(to, step);
  return true;
}

bool OneHopSchedule::CopyOwn(Step* step) const {
  const bool copies = !Reduces(p_.kind) && p_.kind != CollectiveKind::kBarrier;
  if (!copies || !Sends(p_.rank, p_.rank)) return false;
  step->store = true;
  step->chunk = p_.rank;
  PlaceInput(p_.rank, step);
  PlaceOutput(p_.rank, step);
  return true;
}

bool OneHopSchedule::Receive(int peer, Step* step) const {
  if (!Sends(peer, p_.rank)) return false;
  step->recv_from = peer;
  step->chunk = peer;
  PlaceOutput(peer, step);
  if (Reduces(p_.kind)) {
    step->kind = Step::Kind::kHold;
  } else {
    step->store = p_.kind != CollectiveKind::kBarrier;
  }
  return true;
}

void OneHopSchedule::PlaceInput(int to, Step* step) const {
  if (IsDirect(p_.kind)) return SetPart(p_.input_parts[to], &step->input_offset, step);
  Size(IsReduceScatter(p_.kind) ? to : p_.rank, step);
  if (IsReduceScatter(p_.kind)) step->input_offset = ChunkBegin(to) * p_.element_bytes;
}

void OneHopSchedule::PlaceOutput(int from, Step* step) const {
  if (IsDirect(p_.kind)) return SetPart(p_.output_parts[from], &step->output_offset, step);
  Size(IsReduceScatter(p_.kind) ? p_.rank : from, step);
  if (IsAllgather(p_.kind)) step->output_offset = ChunkBegin(from) * p_.element_bytes;
}

void OneHopSchedule::SetPart(const Part& part, size_t* offset, Step* step) const {
  step->bytes = part.elements * p_.element_bytes;
  step->count = part.elements;
  *offset = part.begin * p_.element_bytes;
}

// The size of a slice that carries `chunk`; an allreduce sends all chunks at once.
void OneHopSchedule::Size(uint32_t chunk, Step* step) const {
  const size_t elements = IsAllreduce(p_.kind) ? p_.count : ChunkElements(chunk);
  step->bytes = elements * p_.element_bytes;
  if (HasVariableParts(p_.kind)) step->count = elements;
}

bool OneHopSchedule::Fold(int chunk, Step* step) const {
  if (!Reduces(p_.kind)) return false;
  step->kind = Step::Kind::kFold;
  step->store = true;
  step->finish = true;
  step->chunk = chunk;
  if (IsAllreduce(p_.kind)) {
    step->bytes = ChunkElements(chunk) * p_.element_bytes;
    step->input_offset = step->output_offset = step->arrival_offset = ChunkBegin(chunk) * p_.element_bytes;
    step->first_rank = Ring(chunk + 1);
    return step->bytes > 0;
  }
  // The other kinds fold once: reduce at the root, reduce_scatter at every rank for its own chunk.
  const int owner = p_.kind == CollectiveKind::kReduce ? p_.root : p_.rank;
  if (chunk != 0 || owner != p_.rank) return false;
  step->bytes = ChunkElements(owner) * p_.element_bytes;
  if (IsReduceScatter(p_.kind)) step->input_offset = ChunkBegin(p_.rank) * p_.element_bytes;
  step->first_rank = Ring(owner + 1);
  return step->bytes > 0;
}

}  // namespace annulus
