#include "collectives/choice/algorithm_choice.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "collectives/algorithms/table.h"

namespace annulus {
namespace {

bool CanBeChosen(CollectiveKind kind) { return kind != CollectiveKind::kNone && !IsDirect(kind) && !IsMessage(kind); }

Algorithm OnlyWay(CollectiveKind kind) {
  return IsDirect(kind) ? Algorithm::kDirect : IsMessage(kind) ? Algorithm::kMessage : Algorithm::kRing;
}

// The first of these that stands in for the ring; if none does, the ring.
Algorithm InPlaceOfRing(const Question& question, std::span<const AlgorithmRow* const> rows) {
  const auto stands_in = [&](const AlgorithmRow* row) {
    return row->stands_in_for_ring != nullptr && row->why_not(question) == nullptr && row->stands_in_for_ring(question);
  };
  const auto found = std::ranges::find_if(rows, stands_in);
  return found != rows.end() ? (*found)->algorithm : Algorithm::kRing;
}

}  // namespace

size_t PlaceOf(Algorithm algorithm) {
  const auto place = std::ranges::find(kAlgorithms, algorithm, &AlgorithmName::algorithm);
  ANNULUS_CHECK(place != std::end(kAlgorithms));
  return static_cast<size_t>(place - std::begin(kAlgorithms));
}

AlgorithmChoice::AlgorithmChoice(const PlanSettings& settings, const Topology& topology,
                                 const std::optional<MeasuredFactors>& measured)
    : settings_(settings),
      topology_(topology),
      measured_(measured),
      nominal_(CostsOf(NominalLinks(topology), topology)) {
  for (size_t kind = 0; kind < kKinds; ++kind) {
    for (size_t size_class = 0; size_class < 2 * kPowers; ++size_class) {
      const auto each = static_cast<CollectiveKind>(kind);
      table_[kind][size_class] = static_cast<uint8_t>(Choose(each, LargestOf(size_class)));
    }
  }
}

JobCosts AlgorithmChoice::CostsFor(Algorithm algorithm, size_t bytes) const {
  return measured_ ? Scaled(nominal_, (*measured_)[PlaceOf(algorithm)].For(bytes)) : nominal_;
}

size_t AlgorithmChoice::LargestOf(size_t size_class) const {
  if (size_class >= kPowers) return std::max(settings_.small_bytes + 1, size_t{1} << (size_class - kPowers));
  return std::min(settings_.small_bytes, size_t{1} << size_class);
}

std::vector<Candidate> AlgorithmChoice::Candidates(CollectiveKind kind, size_t bytes) const {
  const bool is_direct = IsDirect(kind);
  if (topology_.nranks == 1 || !(CanBeChosen(kind) || is_direct)) return {{OnlyWay(kind), nullptr, 0}};
  const Question question{job(), nominal_, kind, LargestOf(ClassOf(bytes)), IsSmall(bytes)};
  std::vector<Candidate> candidates;
  for (const AlgorithmRow* row : ChoosableAlgorithms()) {
    if (is_direct && row->algorithm != Algorithm::kOneHop) continue;
    const char* const why_not = row->why_not(question);
    candidates.push_back({row->algorithm, why_not, 0});
    if (why_not != nullptr) continue;
    candidates.back().seconds = row->seconds({job(), CostsFor(row->algorithm, bytes), kind, bytes, question.is_small});
  }
  if (is_direct) candidates.push_back({Algorithm::kDirect, nullptr, 0});
  return candidates;
}

Algorithm AlgorithmChoice::Choose(CollectiveKind kind, size_t bytes, Order order) const {
  const bool is_direct = IsDirect(kind);
  if (topology_.nranks == 1 || !(CanBeChosen(kind) || is_direct)) return OnlyWay(kind);
  const Question question{job(), nominal_, kind, LargestOf(ClassOf(bytes)), IsSmall(bytes)};
  if (is_direct) {
    return RowOf(Algorithm::kOneHop).why_not(question) == nullptr ? Algorithm::kOneHop : Algorithm::kDirect;
  }
  if (settings_.algorithm && OrderOf(*settings_.algorithm) == Order::kRing) order = Order::kRing;
  if (settings_.algorithm) {
    const bool can = RowOf(*settings_.algorithm).why_not(question) == nullptr;
    const bool is_in_order = order == Order::kOther || OrderOf(*settings_.algorithm) == order;
    return can && is_in_order ? *settings_.algorithm : ChooseItself(question, order);
  }
  const Algorithm chosen = ChooseItself(question, order);
  return chosen == Algorithm::kRing ? InPlaceOfRing(question, ChoosableAlgorithms()) : chosen;
}

Algorithm AlgorithmChoice::IfDeclined(Algorithm algorithm, CollectiveKind kind, size_t bytes) const {
  const Question question{job(), nominal_, kind, LargestOf(ClassOf(bytes)), IsSmall(bytes)};
  const std::span<const AlgorithmRow* const> rows = ChoosableAlgorithms();
  const auto place = std::ranges::find(rows, algorithm, &AlgorithmRow::algorithm);
  return InPlaceOfRing(question, rows.subspan(static_cast<size_t>(place - rows.begin()) + 1));
}

Algorithm AlgorithmChoice::ChooseItself(const Question& question, Order order) const {
  const auto can = [&](const AlgorithmRow* row) {
    return row->stands_in_for_ring == nullptr && row->why_not(question) == nullptr &&
           (order == Order::kOther || OrderOf(row->algorithm) == order);
  };
  if (!measured_) return (*std::ranges::find_if(ChoosableAlgorithms(), can))->algorithm;
  Algorithm fastest = Algorithm::kRing;
  double least = std::numeric_limits<double>::infinity();
  for (const AlgorithmRow* row : ChoosableAlgorithms()) {
    if (!can(row)) continue;
    const JobCosts costs = CostsFor(row->algorithm, question.bytes);
    const double seconds = row->seconds({job(), costs, question.kind, question.bytes, question.is_small});
    if (seconds >= least) continue;
    least = seconds;
    fastest = row->algorithm;
  }
  return fastest;
}

double ModelledSeconds(const AlgorithmJob& job, const JobCosts& costs, Algorithm algorithm, size_t bytes) {
  const bool is_small = bytes <= job.settings.small_bytes;
  const Question question{job, costs, CollectiveKind::kAllreduce, bytes, is_small};
  const AlgorithmRow& row = RowOf(algorithm);
  return row.why_not(question) != nullptr ? 0 : row.seconds(question);
}

double ModelledSeconds(const AlgorithmJob& job, const CostFactors& factors, Algorithm algorithm, size_t bytes) {
  return ModelledSeconds(job, Scaled(CostsOf(NominalLinks(job.topology), job.topology), factors), algorithm, bytes);
}

}  // namespace annulus
