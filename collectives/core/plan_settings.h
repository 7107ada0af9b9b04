// PlanSettings: the settings that plans depend on, and the sizes that follow from them. Equal on all ranks: they are
// compared when a communicator is created.
//
// Threads: plain functions and values.
#pragma once

#include <cstddef>
#include <optional>

#include "collectives/core/algorithm.h"
#include "collectives/core/schedule.h"

namespace annulus {

// Largest slice, in bytes, when none is set. With 8 slots, the staging of a link is 2 MiB per direction. That is more
// than a second-level cache of 1 MiB: lines that the peer has read should have left that cache before they are written
// again (ShmSender). It is a small part of the last-level cache.
constexpr size_t kLargestSliceBytes = 256 * 1024;

struct PlanSettings {
  // Set by users.
  std::optional<Algorithm> algorithm;  // For calls that it supports; none: chosen.
  size_t slice_bytes = 0;              // 0: chosen by message size.
  size_t small_bytes = 16 * 1024;      // Largest small call, in bytes that one rank sends to another.
  int channels = 1;
  int mesh_ranks = 64;  // Most ranks that are all linked to each other, which IsDirect collectives need.

  // Made smaller to stay within the memory that users allow (engine/memory_budget.h).
  int slots = 8;
  size_t largest_slice_bytes = kLargestSliceBytes;  // Limit on a chosen slice size.
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

// Whether every rank has a link to every other.
bool HasMesh(int nranks, const PlanSettings& settings);

}  // namespace annulus
