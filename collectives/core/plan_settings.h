// PlanSettings: what a plan depends on besides the call, and the sizes that follow from it. Equal on all ranks.
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

// Largest slice, in bytes, when none is set. With 8 slots, the staging of a link is 2 MiB per direction. That is more
// than a second-level cache of 1 MiB: lines that the peer has read should have left that cache before they are written
// again (ShmSender). It is a small part of the last-level cache.
constexpr size_t kLargestSliceBytes = 256 * 1024;

// Settings on which ranks must agree; they are compared when a communicator is created.
struct PlanSettings {
  std::optional<Algorithm> algorithm;  // For calls that it supports; none: chosen.
  size_t slice_bytes = 0;              // 0: chosen by message size.
  size_t small_bytes = 16 * 1024;      // Largest small call, in bytes that one rank sends to another.
  int channels = 1;
  int slots = 8;
  size_t largest_slice_bytes = kLargestSliceBytes;  // Limit on a chosen slice size.
  int log_ranks = kMaxOneHopRanks + 1;  // Fewest ranks for log steps in small allreduces and barriers. At least 2.
  int near_log_ranks = 8;               // Fewest ranks for log steps on one host, up to 16 ranks connected by sockets.
  size_t near_hop_bytes = 64 * 1024;  // Most bytes that a rank of such a host sends in one hop, to all peers together.
  int tree_ranks = kMaxOneHopRanks + 1;  // Fewest ranks for a tree in the smallest calls. At least 2.
  size_t tree_bytes = 4 * 1024;          // Largest call on a tree.
  size_t gather_bytes = 4 * 1024;        // Largest call in a gather in log steps.
  size_t hop_bytes = 8 * 1024;           // Most bytes that a rank may send between hosts to save messages.
  int mesh_ranks = 64;  // Most ranks that are all linked to each other, which IsDirect collectives need.
  // The host number of each rank, numbered in order of the hosts' first ranks. Empty: the layout is not known, and all
  // ranks count as on one host. Not a setting, but equal on all ranks too.
  std::vector<int> host_of;
  const TransportInfo* near = nullptr;  // Transport between ranks of one host; null: not known. Equal on all ranks.
  const TransportInfo* far = nullptr;   // Transport between hosts; null: not known. Equal on all ranks.
  bool by_system_calls = false;         // Whether messages of some pair of ranks cost system calls. Equal on all ranks.
  double ranks_per_core = 1;            // Largest of any host; at least 1. Equal on all ranks.
};

// Slot size that links need under these settings, in bytes.
size_t SlotBytes(const PlanSettings& settings);

// Slice size of data that goes straight from one rank to another, in bytes.
size_t DirectSliceBytes(const PlanSettings& settings);

// Slice size of a chunk that is cut into slices, in bytes.
size_t ChunkSliceBytes(CollectiveKind kind, int nranks, size_t chunk_bytes, const PlanSettings& settings);

// Slices per round.
int RoundSlices(const PlanSettings& settings);

// Number of steps that a pipeline must be able to keep in flight.
int WindowSteps(const PlanSettings& settings);

// Whether there is more than one host.
bool IsBetweenHosts(const PlanSettings& settings);

// Whether every rank has a link to every other.
bool HasMesh(int nranks, const PlanSettings& settings);

}  // namespace annulus
