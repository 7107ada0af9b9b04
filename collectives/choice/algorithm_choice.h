// AlgorithmChoice: picks the algorithm of a call from the table (algorithms/table.h). Pure, and the same on every rank:
// the choice depends on the kind and size of the call, on nranks, and on settings that all ranks share.
//
// Sizes are grouped in classes by powers of two. The choice for each class is made once, for its largest size; a call
// looks it up.
//
// Threads: an AlgorithmChoice is an immutable value.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <optional>
#include <vector>

#include "collectives/algorithms/row.h"
#include "collectives/core/plan_settings.h"
#include "collectives/core/topology.h"
#include "collectives/cost/job_costs.h"

namespace annulus {

// An algorithm that may serve a call.
struct Candidate {
  Algorithm algorithm = Algorithm::kRing;
  const char* why_not = nullptr;  // Null: the algorithm can do the call.
  double seconds = 0;             // Modelled time; 0 when why_not is set, and of kDirect, which has no model.
};

// Largest call of the middle sizes, in bytes. Caches hold calls of these sizes.
inline constexpr size_t kMostMiddleBytes = 256 * 1024;

// Measured costs of an algorithm, relative to the nominal costs.
struct AlgorithmFactors {
  int64_t is_measured = 0;  // 0: not measured; the factors are 1.
  double message = 1;       // For the cost of each message, in calls of up to kMostMiddleBytes.
  double byte = 1;          // For the cost of each byte, in calls of up to kMostMiddleBytes.
  double large = 1;         // For all costs of larger calls.

  CostFactors For(size_t bytes) const {
    return bytes > kMostMiddleBytes ? CostFactors{large, large} : CostFactors{message, byte};
  }
};

// Factors by place in kAlgorithms. With measured factors the choice follows the modelled times, and may take any order
// of addition.
using MeasuredFactors = std::array<AlgorithmFactors, std::size(kAlgorithms)>;

class AlgorithmChoice {
 public:
  AlgorithmChoice(const PlanSettings& settings, const Topology& topology,
                  const std::optional<MeasuredFactors>& measured = {});

  // `bytes` is what one rank sends to another at once: the whole buffer of an allreduce, the largest part of other
  // kinds.
  Algorithm At(CollectiveKind kind, size_t bytes) const {
    return static_cast<Algorithm>(table_[static_cast<size_t>(kind)][ClassOf(bytes)]);
  }

  // The same, chosen only among algorithms that keep the order of the ring.
  Algorithm InRingOrderAt(CollectiveKind kind, size_t bytes) const {
    const Algorithm algorithm = At(kind, bytes);
    return OrderOf(algorithm) == Order::kRing ? algorithm : Choose(kind, bytes, Order::kRing);
  }

  // What takes such a call when the runner of `algorithm`, which stands in for the ring, declines it.
  Algorithm IfDeclined(Algorithm algorithm, CollectiveKind kind, size_t bytes) const;

  // All algorithms for calls of that class, in order of preference. The times are those of a call of exactly `bytes`.
  std::vector<Candidate> Candidates(CollectiveKind kind, size_t bytes) const;

  const Topology& topology() const { return topology_; }

  // Computes what At returns; with Order::kRing, what InRingOrderAt returns. If the user names an algorithm that keeps
  // the order of the ring, all calls keep that order, even those that the named algorithm cannot do.
  Algorithm Choose(CollectiveKind kind, size_t bytes, Order order = Order::kOther) const;

  // Costs that the model uses for that algorithm in calls of `bytes`.
  JobCosts CostsFor(Algorithm algorithm, size_t bytes) const;
  const std::optional<MeasuredFactors>& measured() const { return measured_; }

 private:
  // Classes of small calls come first, then those of all larger calls. In both, a call's class is the smallest power of
  // two that is not less than its size.
  static constexpr size_t kPowers = 64;
  static constexpr size_t kKinds = static_cast<size_t>(kLastKind) + 1;

  static size_t PowerOf(size_t bytes) { return bytes <= 1 ? 0 : static_cast<size_t>(std::bit_width(bytes - 1)); }
  AlgorithmJob job() const { return {settings_, topology_}; }
  // Chooses among the algorithms that do not stand in for others.
  Algorithm ChooseItself(const Question& question, Order order) const;
  bool IsSmall(size_t bytes) const { return bytes <= settings_.small_bytes; }
  size_t ClassOf(size_t bytes) const {
    return IsSmall(bytes) ? PowerOf(bytes) : kPowers + std::min(PowerOf(bytes), kPowers - 1);
  }
  size_t LargestOf(size_t size_class) const;

  PlanSettings settings_;
  Topology topology_;
  std::optional<MeasuredFactors> measured_;
  JobCosts nominal_;
  std::array<std::array<uint8_t, 2 * kPowers>, kKinds> table_{};
};

// The index in kAlgorithms of an algorithm that can be chosen.
size_t PlaceOf(Algorithm algorithm);

// Modelled time of such an allreduce; 0 when the algorithm cannot do it.
double ModelledSeconds(const AlgorithmJob& job, const CostFactors& factors, Algorithm algorithm, size_t bytes);

// The same for links with those costs.
double ModelledSeconds(const AlgorithmJob& job, const JobCosts& costs, Algorithm algorithm, size_t bytes);

}  // namespace annulus
