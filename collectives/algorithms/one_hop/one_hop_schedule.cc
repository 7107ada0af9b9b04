#include "collectives/algorithms/one_hop/one_hop_schedule.h"

namespace annulus {

OneHopSchedule::OneHopSchedule(const ScheduleParams& params, int channel) : ChunkSchedule(params) {
  size_ = channel == 0 ? 3 * static_cast<size_t>(p_.nranks) : 0;
}

bool OneHopSchedule::At(size_t index, Step* step) const {
  Reset(step);
  const int n = p_.nranks;
  const int position = static_cast<int>(index);
  const CollectiveKind kind = p_.kind;
  if (position >= 2 * n) return Fold(position - 2 * n, step);
  const int which = position / 2;
  if (position % 2 == 1) return which != 0 && Receive(Ring(p_.rank - which), step);
  const int to = Ring(p_.rank + which);
  if (kind == CollectiveKind::kBroadcast && p_.rank != p_.root) return false;
  if (kind == CollectiveKind::kReduce && to != p_.root) return false;
  step->chunk = p_.rank;
  Size(IsReduceScatter(kind) ? to : p_.rank, step);
  if (IsReduceScatter(kind)) step->input_offset = ChunkBegin(to) * p_.element_bytes;
  if (which == 0) {  // The own part of the output.
    step->store = IsAllgather(kind) || (kind == CollectiveKind::kBroadcast && p_.rank == p_.root);
    if (IsAllgather(kind)) step->output_offset = ChunkBegin(p_.rank) * p_.element_bytes;
    return step->store;
  }
  step->send_to = to;
  return true;
}

// The size of a slice that carries `chunk`; an allreduce sends all chunks at once.
void OneHopSchedule::Size(uint32_t chunk, Step* step) const {
  const size_t elements = IsAllreduce(p_.kind) ? p_.count : ChunkElements(chunk);
  step->bytes = elements * p_.element_bytes;
  if (HasVariableParts(p_.kind)) step->count = elements;
}

bool OneHopSchedule::Receive(int peer, Step* step) const {
  if (p_.kind == CollectiveKind::kBroadcast && peer != p_.root) return false;
  if (p_.kind == CollectiveKind::kReduce && p_.rank != p_.root) return false;
  step->recv_from = peer;
  step->chunk = peer;
  Size(IsReduceScatter(p_.kind) ? p_.rank : peer, step);
  if (Reduces(p_.kind)) {
    step->kind = Step::Kind::kHold;
    return true;
  }
  step->store = p_.kind != CollectiveKind::kBarrier;
  if (IsAllgather(p_.kind)) step->output_offset = ChunkBegin(peer) * p_.element_bytes;
  return true;
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
