#include "collectives/core/schedule.h"

#include <algorithm>

#include "base/check.h"

namespace annulus {

size_t ChunkElements(size_t count, int nranks, uint32_t chunk) {
  return count / nranks + (chunk < count % nranks ? 1 : 0);
}

size_t ChunkBegin(size_t count, int nranks, uint32_t chunk) {
  return count / nranks * chunk + std::min<size_t>(chunk, count % nranks);
}

namespace {

// Phases through which each slice of a chunk passes at one rank.
int RingPhases(CollectiveKind kind, int nranks) { return IsAllreduce(kind) ? 2 * nranks - 1 : nranks; }

bool IsChain(CollectiveKind kind) { return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce; }

// The parts that are the chunks, when these may differ freely.
const Part* Parts(const ScheduleParams& p) {
  switch (p.kind) {
    case CollectiveKind::kAllgatherv:
      return p.output_parts;
    case CollectiveKind::kReduceScatterv:
    case CollectiveKind::kAllreduceGroup:
      return p.input_parts;
    default:
      return nullptr;
  }
}

// Whether a kDirect schedule has slices from one rank to the other; to oneself it is a copy.
bool Exchanges(const ScheduleParams& p, int from, int to) {
  return IsAlltoall(p.kind) || (IsGather(p.kind) ? to : from) == p.root;
}

// Slice 0 exists even when the part is empty.
uint64_t DirectSlices(const ScheduleParams& p, const Part& part) {
  return std::max<uint64_t>(1, (part.elements * p.element_bytes + p.slice_bytes - 1) / p.slice_bytes);
}

int Ahead(const ScheduleParams& p, int rounds) { return (p.rank + rounds) % p.nranks; }
int Behind(const ScheduleParams& p, int rounds) { return (p.rank + p.nranks - rounds) % p.nranks; }

}  // namespace

void FillRoundEnds(const ScheduleParams& p, uint64_t* ends) {
  uint64_t steps = 0;
  for (int k = 0; k < p.nranks; ++k) {
    const int to = Ahead(p, k);
    const int from = Behind(p, k);
    const uint64_t sent = Exchanges(p, p.rank, to) ? DirectSlices(p, p.input_parts[to]) : 0;
    const uint64_t received = Exchanges(p, from, p.rank) ? DirectSlices(p, p.output_parts[from]) : 0;
    steps += 2 * std::max(sent, received);
    ends[k] = steps;
  }
}

Schedule::Schedule(const ScheduleParams& params, int channel) : p_(params), channel_(channel) {
  ANNULUS_CHECK(!IsExchange(p_.algorithm) && p_.nranks >= 1 && p_.round_slices >= 1 && p_.channels >= 1);
  if (p_.algorithm == Algorithm::kDirect) {
    size_ = channel == 0 ? p_.round_ends[p_.nranks - 1] : 0;
    return;
  }
  if (p_.algorithm == Algorithm::kMessage) {
    size_ = DirectSlices(p_, {0, p_.count});
    return;
  }
  const bool single = p_.nranks == 1 || p_.algorithm == Algorithm::kOneHop || p_.kind == CollectiveKind::kBarrier;
  if (single) {  // Everything is on channel 0.
    if (channel != 0) return;
    if (p_.nranks == 1) {
      size_ = p_.kind == CollectiveKind::kBarrier ? 0 : 1;
    } else if (p_.algorithm == Algorithm::kOneHop) {
      size_ = 3 * static_cast<size_t>(p_.nranks);
    } else {
      size_ = 2;
    }
    return;
  }
  const size_t largest_chunk_bytes = LargestChunk() * p_.element_bytes;
  const uint64_t slices = std::max<uint64_t>(1, (largest_chunk_bytes + p_.slice_bytes - 1) / p_.slice_bytes);
  const uint64_t channels = p_.channels;
  if (p_.algorithm == Algorithm::kTwoLevel) {
    channel_slices_ = slices;
    SizeLevel();
    return;
  }
  channel_slices_ = slices / channels + (static_cast<uint64_t>(channel) < slices % channels ? 1 : 0);
  phases_ = IsChain(p_.kind) ? 1 : RingPhases(p_.kind, p_.nranks);
  size_ = channel_slices_ * phases_;
}

size_t Schedule::ChunkElements(uint32_t chunk) const {
  if (p_.kind == CollectiveKind::kAllreduce) return annulus::ChunkElements(p_.count, p_.nranks, chunk);
  const Part* parts = Parts(p_);
  return parts != nullptr ? parts[chunk].elements : p_.count;
}

size_t Schedule::ChunkBegin(uint32_t chunk) const {
  if (p_.kind == CollectiveKind::kAllreduce) return annulus::ChunkBegin(p_.count, p_.nranks, chunk);
  if (IsChain(p_.kind)) return 0;
  const Part* parts = Parts(p_);
  return parts != nullptr ? parts[chunk].begin : p_.count * chunk;
}

size_t Schedule::LargestChunk() const {
  size_t largest = ChunkElements(0);
  for (int chunk = 1; chunk < p_.nranks && Parts(p_) != nullptr; ++chunk)
    largest = std::max(largest, ChunkElements(chunk));
  return largest;
}

Schedule::Position Schedule::Locate(size_t index) const {
  const uint64_t round_steps = static_cast<uint64_t>(p_.round_slices) * phases_;
  const uint64_t round = index / round_steps;
  const uint64_t first_slice = round * p_.round_slices;
  const uint64_t slices = std::min<uint64_t>(p_.round_slices, channel_slices_ - first_slice);
  const uint64_t within = index % round_steps;
  const uint64_t channel_slice = first_slice + within % slices;
  const bool is_level = p_.algorithm == Algorithm::kTwoLevel;
  return {static_cast<int>(within / slices), is_level ? channel_slice : channel_slice * p_.channels + channel_};
}

bool Schedule::Place(uint32_t chunk, uint64_t slice, Step* step) const {
  const size_t chunk_bytes = ChunkElements(chunk) * p_.element_bytes;
  const size_t begin = slice * p_.slice_bytes;
  if (begin >= chunk_bytes && slice != 0) return false;
  const size_t chunk_begin = ChunkBegin(chunk) * p_.element_bytes;
  step->chunk = chunk;
  step->slice = slice;
  if (HasVariableParts(p_.kind)) step->count = ChunkElements(chunk);
  step->bytes = std::min(p_.slice_bytes, chunk_bytes - begin);
  // The side that holds one chunk only starts at 0: a rank's share in reduce_scatter's output and allgather's input.
  step->input_offset = begin + (IsAllgather(p_.kind) ? 0 : chunk_begin);
  step->output_offset = begin + (IsReduceScatter(p_.kind) ? 0 : chunk_begin);
  return true;
}

bool Schedule::At(size_t index, Step* step) const {
  ANNULUS_CHECK(index < size_);
  *step = Step();
  step->count = p_.count;
  if (p_.algorithm == Algorithm::kDirect) return DirectAt(index, step);
  if (p_.algorithm == Algorithm::kMessage) return MessageAt(index, step);
  if (p_.nranks == 1) {
    step->store = true;
    step->finish = Reduces(p_.kind);
    step->bytes = ChunkElements(0) * p_.element_bytes;
    step->input_offset = IsReduceScatter(p_.kind) ? ChunkBegin(0) * p_.element_bytes : 0;
    step->output_offset = IsAllgather(p_.kind) ? ChunkBegin(0) * p_.element_bytes : 0;
    return true;
  }
  if (p_.algorithm == Algorithm::kOneHop) return OneHopAt(index, step);
  if (p_.algorithm == Algorithm::kTwoLevel) return channel_ == 0 ? InnerAt(index, step) : OuterAt(index, step);
  if (p_.kind == CollectiveKind::kBarrier) return TokenAt(index, step);
  return IsChain(p_.kind) ? ChainAt(index, step) : RingAt(index, step);
}

// Rank r is the k-th on the path of chunk c when r = c + 1 + k (allgather: r = c + k).
bool Schedule::RingAt(size_t index, Step* step) const {
  const Position at = Locate(index);
  const int n = p_.nranks;
  const int k = at.phase;
  const bool gather_only = IsAllgather(p_.kind);
  if (!Place(Ring(p_.rank - k - (gather_only ? 0 : 1)), at.slice, step)) return false;
  if (k > 0) step->recv_from = Ring(p_.rank - 1);
  if (k < phases_ - 1) step->send_to = Ring(p_.rank + 1);
  if (gather_only) {
    step->store = true;
    return true;
  }
  step->reduce = k > 0 && k < n;
  step->finish = k == n - 1;
  step->store = k >= n - 1;
  return true;
}

// Broadcast runs root, root + 1, ...; reduce runs root + 1, ..., root.
bool Schedule::ChainAt(size_t index, Step* step) const {
  if (!Place(0, Locate(index).slice, step)) return false;
  const bool broadcast = p_.kind == CollectiveKind::kBroadcast;
  const int position = Ring(p_.rank - p_.root - (broadcast ? 0 : 1));
  const bool last = position == p_.nranks - 1;
  if (position > 0) step->recv_from = Ring(p_.rank - 1);
  if (!last) step->send_to = Ring(p_.rank + 1);
  step->reduce = !broadcast && position > 0;
  step->store = broadcast || last;
  step->finish = !broadcast && last;
  return true;
}

// A token goes round twice: the first round tells the last rank that all have entered, the second tells everyone.
bool Schedule::TokenAt(size_t index, Step* step) const {
  const bool first_round = index == 0;
  const bool first_rank = p_.rank == 0;
  const bool last_rank = p_.rank == p_.nranks - 1;
  if (!(first_rank && first_round)) step->recv_from = Ring(p_.rank - 1);
  if (first_round || !last_rank) step->send_to = Ring(p_.rank + 1);
  return true;
}

// Steps 2k send to rank + k and steps 2k + 1 receive from rank - k, so few steps in flight suffice; steps [2n, 3n) fold
// one chunk each.
bool Schedule::OneHopAt(size_t index, Step* step) const {
  const int n = p_.nranks;
  const int position = static_cast<int>(index);
  const CollectiveKind kind = p_.kind;
  if (position >= 2 * n) return OneHopFold(position - 2 * n, step);
  const int which = position / 2;
  if (position % 2 == 1) return which != 0 && OneHopReceive(Ring(p_.rank - which), step);
  const int to = Ring(p_.rank + which);
  if (kind == CollectiveKind::kBroadcast && p_.rank != p_.root) return false;
  if (kind == CollectiveKind::kReduce && to != p_.root) return false;
  step->chunk = p_.rank;
  PlaceOneHop(IsReduceScatter(kind) ? to : p_.rank, step);
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
void Schedule::PlaceOneHop(uint32_t chunk, Step* step) const {
  const size_t elements = IsAllreduce(p_.kind) ? p_.count : ChunkElements(chunk);
  step->bytes = elements * p_.element_bytes;
  if (HasVariableParts(p_.kind)) step->count = elements;
}

bool Schedule::OneHopReceive(int peer, Step* step) const {
  if (p_.kind == CollectiveKind::kBroadcast && peer != p_.root) return false;
  if (p_.kind == CollectiveKind::kReduce && p_.rank != p_.root) return false;
  step->recv_from = peer;
  step->chunk = peer;
  PlaceOneHop(IsReduceScatter(p_.kind) ? p_.rank : peer, step);
  if (Reduces(p_.kind)) {
    step->kind = Step::Kind::kHold;
    return true;
  }
  step->store = p_.kind != CollectiveKind::kBarrier;
  if (IsAllgather(p_.kind)) step->output_offset = ChunkBegin(peer) * p_.element_bytes;
  return true;
}

bool Schedule::OneHopFold(int chunk, Step* step) const {
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

bool Schedule::MessageAt(size_t index, Step* step) const {
  const bool sends = p_.kind == CollectiveKind::kSend;
  step->slice = index;
  step->input_offset = step->output_offset = index * p_.slice_bytes;
  step->bytes = std::min(p_.slice_bytes, p_.count * p_.element_bytes - step->input_offset);
  step->store = !sends;
  (sends ? step->send_to : step->recv_from) = p_.root;
  return true;
}

// Round k: even steps send a slice to rank + k, odd ones receive one from rank - k; round 0 copies the own part.
bool Schedule::DirectAt(size_t index, Step* step) const {
  const uint64_t* ends = p_.round_ends;
  const int k = static_cast<int>(std::upper_bound(ends, ends + p_.nranks, index) - ends);
  const size_t within = index - (k > 0 ? ends[k - 1] : 0);
  const bool receives = within % 2 == 1;
  const int peer = receives ? Behind(p_, k) : Ahead(p_, k);
  if (receives ? k == 0 || !Exchanges(p_, peer, p_.rank) : !Exchanges(p_, p_.rank, peer)) return false;
  const Part& part = receives ? p_.output_parts[peer] : p_.input_parts[peer];
  step->slice = within / 2;
  if (step->slice >= DirectSlices(p_, part)) return false;
  const size_t begin = step->slice * p_.slice_bytes;
  step->chunk = receives ? peer : p_.rank;
  step->count = part.elements;
  step->bytes = std::min(p_.slice_bytes, part.elements * p_.element_bytes - begin);
  (receives ? step->output_offset : step->input_offset) = part.begin * p_.element_bytes + begin;
  if (k == 0) step->output_offset = p_.output_parts[peer].begin * p_.element_bytes + begin;
  step->store = receives || k == 0;
  if (receives) step->recv_from = peer;
  if (!receives && k > 0) step->send_to = peer;
  return true;
}

}  // namespace annulus
