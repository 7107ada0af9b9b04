// AlgorithmRow: everything that the rest of the library knows about an algorithm: which calls it supports and what they
// cost, the links and the memory that it needs, and how its runner is created. core/algorithms.inc lists them.
//
// The functions are pure, and the same on every rank.
//
// Threads: constants and plain values.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "collectives/algorithms/runner.h"
#include "collectives/core/algorithm.h"
#include "collectives/core/collective.h"
#include "collectives/core/plan_settings.h"
#include "collectives/core/schedule.h"
#include "collectives/core/topology.h"
#include "collectives/cost/job_costs.h"

namespace annulus {

class SlotMemory;

// The job in which an algorithm would run.
struct AlgorithmJob {
  const PlanSettings& settings;
  const Topology& topology;

  int nranks() const { return topology.nranks; }
  const HostGrid& grid() const { return topology.grid; }
};

// A call, or a class of calls, about which an algorithm is asked.
struct Question {
  const AlgorithmJob& job;
  const JobCosts& costs;
  CollectiveKind kind;
  size_t bytes;   // Size of the call, or of the largest call of its class.
  bool is_small;  // Whether `bytes` is at most settings.small_bytes.

  bool IsAllreduceOrBarrier() const { return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kBarrier; }
};

// Reasons that several algorithms return.
constexpr const char* kNeitherAllreduceNorBarrier = "neither allreduce nor barrier";
constexpr const char* kMoreThanSmall = "more than ANNULUS_SMALL_BYTES";

struct NeededLink {
  int peer = 0;
  int channel = 0;
  auto operator<=>(const NeededLink&) const = default;
};

struct AlgorithmRow {
  Algorithm algorithm;
  // Reason why such calls are not supported; null when they are.
  const char* (*why_not)(const Question& question);
  // Time that such a call takes by the cost model. Called only for supported calls.
  double (*seconds)(const Question& question);
  // Adds the links that `rank` needs, in any order; duplicates are allowed.
  void (*add_links)(int rank, const AlgorithmJob& job, std::vector<NeededLink>* links);
  // Most bytes that its runner holds.
  size_t (*memory_bytes)(const AlgorithmJob& job);
  // Creates the runner; null when the job does not use the algorithm. `links` has what add_links asked for. It and
  // `staging`, where runners allocate their own slots (null: plain host memory), outlive the runner.
  std::unique_ptr<Runner> (*make)(int rank, const AlgorithmJob& job, const Links* links, SlotMemory* staging);
  // Whether the output may be written past the caches: nothing reads it before the call ends.
  bool may_stream_output = true;
  // Whether the algorithm cuts what it sends into slices.
  bool is_sliced = true;
  // Whether a group of allreduces that would each use the algorithm uses it too, and adds in its order. Other groups
  // add in the order of the ring.
  bool serves_groups = false;
  // Whether the runner reads and writes memory of devices itself: such calls are not staged in host memory.
  bool takes_device_memory = false;
  // Reason why the ring is better for a supported call because of its type or operation; null when it is not. A null
  // function: there is no such reason.
  const char* (*type_why_not)(const PlanSettings& settings, const Call& call, size_t element_bytes) = nullptr;
  // Whether it takes the place of the ring, where the ring is chosen and users name no algorithm: its runner finds out
  // at the start of each call which of the two is better. A null function: it is chosen like the others.
  bool (*stands_in_for_ring)(const Question& question) = nullptr;
  // Sets the parameters of a schedule that only this algorithm has. A null function: there are none.
  void (*add_params)(const Topology& topology, ScheduleParams* params) = nullptr;
};

// Adds links on channel 0.
inline void AddPeers(const std::vector<int>& peers, std::vector<NeededLink>* links) {
  for (const int peer : peers) links->push_back({peer, 0});
}

}  // namespace annulus
