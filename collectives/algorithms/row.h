// AlgorithmRow: all that the rest of the library knows of an algorithm: when it can do a call and what that costs, the
// links and the memory that it needs, and how its runner is made. algorithms/table.cc lists the rows.
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
#include "collectives/core/host_grid.h"
#include "collectives/core/plan_settings.h"
#include "collectives/cost/job_costs.h"

namespace annulus {

// The job that an algorithm would serve.
struct Job {
  int nranks = 1;
  const PlanSettings& settings;
  const HostGrid& grid;
};

// The calls that an algorithm is asked about.
struct Question {
  const Job& job;
  const JobCosts& costs;
  CollectiveKind kind;
  size_t bytes;   // Of one call, or of the largest of its class.
  bool is_small;  // Whether bytes are at most settings.small_bytes.

  bool IsAllreduceOrBarrier() const { return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kBarrier; }
};

// Reasons that several algorithms give.
constexpr const char* kNeitherAllreduceNorBarrier = "neither allreduce nor barrier";
constexpr const char* kMoreThanSmall = "more than ANNULUS_SMALL_BYTES";

struct NeededLink {
  int peer = 0;
  int channel = 0;
  auto operator<=>(const NeededLink&) const = default;
};

struct AlgorithmRow {
  Algorithm algorithm;
  // Why calls like this cannot be done so; null when they can.
  const char* (*why_not)(const Question& question);
  // What such a call takes by the cost model. Asked only when the call can be done so.
  double (*seconds)(const Question& question);
  // Adds the links that `rank` needs, in any order and however often.
  void (*add_links)(int rank, const Job& job, std::vector<NeededLink>* links);
  // Bytes that its runner holds, at most.
  size_t (*memory_bytes)(const Job& job);
  // Null when the job has no use for the algorithm. `links` has what add_links asked for, and outlives the runner.
  std::unique_ptr<Runner> (*make)(int rank, const Job& job, const Links* links);
  // Whether the output may be written past the caches: nothing reads it before the call has ended.
  bool may_stream_output = true;
  // Whether it cuts what it sends into slices.
  bool is_sliced = true;
};

// Adds links on channel 0.
inline void AddPeers(const std::vector<int>& peers, std::vector<NeededLink>* links) {
  for (const int peer : peers) links->push_back({peer, 0});
}

}  // namespace annulus
