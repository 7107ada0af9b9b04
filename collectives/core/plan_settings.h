// PlanSettings: what plans depend on beside the call, and is equal on all ranks; and the sizes that follow from it.
//
// Threads: plain functions and values.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "collectives/core/algorithm.h"
#include "collectives/core/schedule.h"
#include "transport/transport_info.h"

namespace annulus {

// Largest slice when none is set: with 8 slots a link's staging is 2 MiB per direction. That is more than a
// second-level cache of 1 MiB, from which lines that the peer has read had better be gone before they are written again
// (ShmSender), and a small part of the last-level one.
constexpr size_t kLargestSliceBytes = 256 * 1024;

// Settings on which ranks must agree; compared when a communicator is created.
struct PlanSettings {
  std::optional<Algorithm> algorithm;  // Where a call can be done in that way; none: chosen.
  size_t slice_bytes = 0;              // 0: chosen by message size.
  size_t small_bytes = 16 * 1024;      // Up to here, in bytes that one rank sends to another, a call is small.
  int channels = 1;
  int slots = 8;
  size_t largest_slice_bytes = kLargestSliceBytes;  // When chosen.
  int log_ranks = kMaxOneHopRanks + 1;   // From here on, small allreduces and barriers go in log steps. At least 2.
  int near_log_ranks = 8;                // So many to 16 ranks of one host do too, where sockets join them,
  size_t near_hop_bytes = 64 * 1024;     // when one hop would have a rank send more than this in all.
  int tree_ranks = kMaxOneHopRanks + 1;  // From here on, the smallest go through a tree. At least 2.
  size_t tree_bytes = 4 * 1024;          // Up to here, on a tree.
  size_t gather_bytes = 4 * 1024;        // Up to here, in a gather in log steps.
  size_t hop_bytes = 8 * 1024;           // Between hosts, what a rank may send in all to save messages.
  int mesh_ranks = 64;  // Up to so many ranks, each has a link to every other, which IsDirect collectives need.
  // The layout of hosts: by rank, the number of its host, in order of the hosts' first ranks. Empty: nothing is known
  // of it, and all count as one host's. No setting, but equal on all ranks too.
  std::vector<int> host_of;
  const TransportInfo* near = nullptr;  // The transport between ranks of one host; null: not known. As host_of.
  const TransportInfo* far = nullptr;   // The transport between hosts. Likewise.
  bool by_system_calls = false;         // Between some two ranks, a message costs system calls. As host_of.
  double ranks_per_core = 1;            // Of the host that has most; at least 1. As host_of.
};

// The slot size that links need under these settings.
size_t SlotBytes(const PlanSettings& settings);

// The slice of everything that goes straight from one rank to another.
size_t DirectSliceBytes(const PlanSettings& settings);

// The slice of a chunk that is cut into slices.
size_t ChunkSliceBytes(CollectiveKind kind, int nranks, size_t chunk_bytes, const PlanSettings& settings);

// Slices of a round.
int RoundSlices(const PlanSettings& settings);

// Steps that a pipeline must be able to keep in flight.
int WindowSteps(const PlanSettings& settings);

// Whether there is more than one host.
bool IsBetweenHosts(const PlanSettings& settings);

// Whether every rank has a link to every other.
bool HasMesh(int nranks, const PlanSettings& settings);

}  // namespace annulus
