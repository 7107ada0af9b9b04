// AlgorithmChoice: which algorithm does a call, out of the table (algorithms/table.h). Pure, and the same on every
// rank: it depends on the kind and size of the call, on nranks, and on settings that all ranks share.
//
// Sizes are classed by powers of two, and the choice for each class is made once, by its largest: a call looks it up.
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
#include "collectives/core/host_grid.h"
#include "collectives/core/plan_settings.h"
#include "collectives/cost/job_costs.h"

namespace annulus {

// A way to do a call.
struct Candidate {
  Algorithm algorithm = Algorithm::kRing;
  const char* why_not = nullptr;  // Null: the call can be done so.
  double seconds = 0;             // What it takes by the cost model; 0 when why_not is set.
};

// Up to here calls are of the middle sizes, which caches hold.
inline constexpr size_t kMostMiddleBytes = 256 * 1024;

// What was measured of an algorithm, against the nominal costs.
struct AlgorithmFactors {
  int64_t is_measured = 0;  // 0: nothing was, and the factors are 1.
  double message = 1;       // These two of calls of up to kMostMiddleBytes.
  double byte = 1;
  double large = 1;  // Of all that larger ones cost.

  CostFactors For(size_t bytes) const {
    return bytes > kMostMiddleBytes ? CostFactors{large, large} : CostFactors{message, byte};
  }
};

// By place in kAlgorithms. With it the choice is by the modelled times, and may take any order of addition.
using MeasuredFactors = std::array<AlgorithmFactors, std::size(kAlgorithms)>;

class AlgorithmChoice {
 public:
  AlgorithmChoice(int nranks, const PlanSettings& settings, const std::optional<MeasuredFactors>& measured = {});

  // `bytes` is what one rank sends to another at once: of an allreduce all, of other kinds the largest part.
  Algorithm At(CollectiveKind kind, size_t bytes) const {
    return static_cast<Algorithm>(table_[static_cast<size_t>(kind)][ClassOf(bytes)]);
  }

  // The same out of those only that keep the ring's order.
  Algorithm InRingOrderAt(CollectiveKind kind, size_t bytes) const {
    const Algorithm algorithm = At(kind, bytes);
    return OrderOf(algorithm) == Order::kRing ? algorithm : Choose(kind, bytes, Order::kRing);
  }

  // All ways to do calls of that class, in the order of preference; with the times of such a call, not of its class.
  std::vector<Candidate> Candidates(CollectiveKind kind, size_t bytes) const;

  const HostGrid& grid() const { return grid_; }

  // What At gives, worked out anew; with Order::kRing what InRingOrderAt gives. Users who name an algorithm of the
  // ring's order get no other order, in calls either that it cannot do.
  Algorithm Choose(CollectiveKind kind, size_t bytes, Order order = Order::kOther) const;

  // The costs by which that algorithm is judged in calls of so many bytes.
  JobCosts CostsFor(Algorithm algorithm, size_t bytes) const;
  const std::optional<MeasuredFactors>& measured() const { return measured_; }

 private:
  // Small calls, then all larger ones; in each by the power of two that is not less.
  static constexpr size_t kPowers = 64;
  static constexpr size_t kKinds = static_cast<size_t>(kLastKind) + 1;

  static size_t PowerOf(size_t bytes) { return bytes <= 1 ? 0 : static_cast<size_t>(std::bit_width(bytes - 1)); }
  Job job_of() const { return {nranks_, settings_, grid_}; }
  bool IsSmall(size_t bytes) const { return bytes <= settings_.small_bytes; }
  size_t ClassOf(size_t bytes) const {
    return IsSmall(bytes) ? PowerOf(bytes) : kPowers + std::min(PowerOf(bytes), kPowers - 1);
  }
  size_t LargestOf(size_t size_class) const;

  int nranks_;
  PlanSettings settings_;
  HostGrid grid_;
  std::optional<MeasuredFactors> measured_;
  JobCosts nominal_;
  std::array<std::array<uint8_t, 2 * kPowers>, kKinds> table_{};
};

// The place of an algorithm that can be chosen in kAlgorithms.
size_t PlaceOf(Algorithm algorithm);

// What such an allreduce takes by the model; 0 when it cannot be done so.
double ModelledSeconds(int nranks, const PlanSettings& settings, const CostFactors& factors, Algorithm algorithm,
                       size_t bytes);

}  // namespace annulus
