#include "collectives/core/chunk_schedule.h"

#include <algorithm>

namespace annulus {
namespace {

// The parts that form the chunks, if their sizes may differ freely.
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

}  // namespace

uint64_t SlicesOf(const ScheduleParams& p, const Part& part) {
  return std::max<uint64_t>(1, (part.elements * p.element_bytes + p.slice_bytes - 1) / p.slice_bytes);
}

uint64_t SlicesOfChannel(uint64_t slices, int channels, int channel) {
  const auto stride = static_cast<uint64_t>(channels);
  return slices / stride + (static_cast<uint64_t>(channel) < slices % stride ? 1 : 0);
}

size_t ChunkSchedule::ChunkElements(uint32_t chunk) const {
  if (p_.kind == CollectiveKind::kAllreduce) return annulus::ChunkElements(p_.count, p_.nranks, chunk);
  const Part* parts = Parts(p_);
  return parts != nullptr ? parts[chunk].elements : p_.count;
}

size_t ChunkSchedule::ChunkBegin(uint32_t chunk) const {
  if (p_.kind == CollectiveKind::kAllreduce) return annulus::ChunkBegin(p_.count, p_.nranks, chunk);
  if (IsChain(p_.kind)) return 0;
  const Part* parts = Parts(p_);
  return parts != nullptr ? parts[chunk].begin : p_.count * chunk;
}

uint64_t ChunkSchedule::Slices() const {
  size_t largest = ChunkElements(0);
  for (int chunk = 1; chunk < p_.nranks && Parts(p_) != nullptr; ++chunk)
    largest = std::max(largest, ChunkElements(chunk));
  return std::max<uint64_t>(1, (largest * p_.element_bytes + p_.slice_bytes - 1) / p_.slice_bytes);
}

ChunkSchedule::Position ChunkSchedule::Locate(size_t index, int phases, uint64_t slices) const {
  const uint64_t round_steps = static_cast<uint64_t>(p_.round_slices) * phases;
  const uint64_t round = index / round_steps;
  const uint64_t first_slice = round * p_.round_slices;
  const uint64_t in_round = std::min<uint64_t>(p_.round_slices, slices - first_slice);
  const uint64_t within = index % round_steps;
  return {static_cast<int>(within / in_round), first_slice + within % in_round};
}

bool ChunkSchedule::Place(uint32_t chunk, uint64_t slice, Step* step) const {
  const size_t chunk_bytes = ChunkElements(chunk) * p_.element_bytes;
  const size_t begin = slice * p_.slice_bytes;
  if (begin >= chunk_bytes && slice != 0) return false;
  const size_t chunk_begin = ChunkBegin(chunk) * p_.element_bytes;
  step->chunk = chunk;
  step->slice = slice;
  if (HasVariableParts(p_.kind)) step->count = ChunkElements(chunk);
  step->bytes = std::min(p_.slice_bytes, chunk_bytes - begin);
  // A buffer that holds only one chunk starts at 0: a rank's share in reduce_scatter's output and allgather's input.
  step->input_offset = begin + (IsAllgather(p_.kind) ? 0 : chunk_begin);
  step->output_offset = begin + (IsReduceScatter(p_.kind) ? 0 : chunk_begin);
  return true;
}

}  // namespace annulus
