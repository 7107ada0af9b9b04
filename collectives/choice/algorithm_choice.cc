// The table of candidates, and how one of them is picked.
#include "collectives/choice/algorithm_choice.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace annulus {
namespace {

// What a candidate is asked about.
struct Question {
  int nranks;
  const PlanSettings& settings;
  const JobCosts& costs;
  const HostGrid& grid;
  CollectiveKind kind;
  size_t bytes;   // The most of the class, or of one call.
  bool is_small;  // At most settings.small_bytes.

  Question With(const JobCosts& others, size_t other_bytes) const {
    return {nranks, settings, others, grid, kind, other_bytes, is_small};
  }
};

// A row of the table. Both functions are pure, and know nothing of the rank.
struct Rule {
  Algorithm algorithm;
  const char* (*why_not)(const Question&);  // Null when calls like this can be done so.
  double (*seconds)(const Question&);       // Asked only then.
};

constexpr const char* kNeither = "neither allreduce nor barrier";
constexpr const char* kTooLarge = "more than ANNULUS_SMALL_BYTES";

bool IsAllreduceOrBarrier(const Question& q) {
  return q.kind == CollectiveKind::kAllreduce || q.kind == CollectiveKind::kBarrier;
}

// -- The ring, which does everything ---------------------------------------------------------------------------------

bool IsChain(CollectiveKind kind) { return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce; }

const char* RingWhyNot(const Question&) { return nullptr; }

double RingTime(const Question& q) {
  const auto bytes = static_cast<double>(q.bytes);
  const LinkCosts& costs = q.costs.ring;
  const size_t chunk = IsAllreduce(q.kind) ? q.bytes / q.nranks : q.bytes;
  const RingSlices slices = {ChunkSliceBytes(q.kind, q.nranks, chunk, q.settings), RoundSlices(q.settings)};
  if (q.kind == CollectiveKind::kBarrier) return RingSeconds(q.nranks, 0, slices, costs);
  if (IsAllreduce(q.kind)) return RingSeconds(q.nranks, bytes, slices, costs);
  const bool reduces = Reduces(q.kind);
  if (IsChain(q.kind)) return ChainSeconds(q.nranks, bytes, slices, costs, reduces);
  return HalfRingSeconds(q.nranks, bytes * q.nranks, slices, costs, reduces);
}

// -- One hop, between few ranks --------------------------------------------------------------------------------------

const char* OneHopWhyNot(const Question& q) {
  if (q.nranks > kMaxOneHopRanks) return "more than 16 ranks";
  if (q.is_small) return nullptr;
  if (q.nranks > 2 || q.kind != CollectiveKind::kAllreduce) return kTooLarge;
  return q.bytes <= MostOneHopBytes(q.nranks, q.settings) ? nullptr
                                                          : "more than four times ANNULUS_SMALL_BYTES or a slot";
}

double OneHopTime(const Question& q) { return OneHopSeconds(q.nranks, static_cast<double>(q.bytes), q.costs.one_hop); }

// -- Log steps, between many, and between some of one host over sockets -----------------------------------------------

const char* LogStepsWhyNot(const Question& q) {
  if (!IsAllreduceOrBarrier(q)) return kNeither;
  if (!HasLogSteps(q.nranks, q.settings)) return "too few ranks";
  const bool near = HasNearLogSteps(q.nranks, q.settings);
  if (q.bytes > MostLogBytes(q.nranks, q.settings)) return near ? "more than twice ANNULUS_SMALL_BYTES" : kTooLarge;
  const bool wanted = q.settings.algorithm == Algorithm::kLogSteps;
  const bool hops = q.is_small && (q.nranks - 1) * q.bytes <= q.settings.near_hop_bytes;
  if (near && hops && !wanted) return "one hop sends little";
  // For the largest type, whose chunks are padded most.
  constexpr size_t kMostElementBytes = 8;
  const size_t count = (q.bytes + kMostElementBytes - 1) / kMostElementBytes;
  const bool fits = LogMessageBytes(q.nranks, count, kMostElementBytes) <= SlotBytes(q.settings);
  return fits ? nullptr : "messages larger than a slot";
}

double LogStepsTime(const Question& q) {
  const bool is_barrier = q.kind == CollectiveKind::kBarrier;
  const double both = LogExchangeSeconds(q.nranks, static_cast<double>(q.bytes), q.costs.log_steps);
  return is_barrier ? both / 2 : both;
}

// -- A gather in log steps, between few ranks over sockets ------------------------------------------------------------

const char* LogGatherWhyNot(const Question& q) {
  if (!IsAllreduceOrBarrier(q)) return kNeither;
  if (q.nranks < 3) return "fewer than 3 ranks";
  if (q.nranks > kMaxOneHopRanks) return "more than 16 ranks";
  if (!HasLogGather(q.nranks, q.settings)) return "all ranks share memory";
  if (!q.is_small) return kTooLarge;
  const size_t all = q.nranks * q.bytes;
  const bool costs = IsBetweenHosts(q.settings) && all - q.bytes > q.settings.hop_bytes;
  if (q.bytes > MostGatherBytes(q.settings) || costs) return "too large to be gathered";
  return all <= SlotBytes(q.settings) ? nullptr : "messages larger than a slot";
}

double LogGatherTime(const Question& q) {
  return LogGatherSeconds(q.nranks, static_cast<double>(q.bytes), q.costs.log_steps);
}

// -- A tree, between many --------------------------------------------------------------------------------------------

const char* TreeWhyNot(const Question& q) {
  if (!IsAllreduceOrBarrier(q)) return kNeither;
  if (!HasTree(q.nranks, q.settings)) return "too few ranks";
  if (!q.is_small) return kTooLarge;
  return q.bytes <= MostTreeBytes(q.settings) ? nullptr : "too large for a tree that is not pipelined";
}

double TreeTime(const Question& q) {
  return SmallTreeSeconds(q.nranks, static_cast<double>(q.bytes), q.costs.log_steps);
}

// -- Two levels, between hosts of equally many ranks -----------------------------------------------------------------

// They add in an order of their own, so they are taken by what docs/determinism.md names, and nothing else. From here
// on they take less time than the ring by the model with nominal costs, on the grids and sizes of
// tests/collectives/choice/algorithm_choice_test.cc: 2 to 100 hosts of 2 to 16 ranks that share memory and have a core
// each, up to 4 GiB. Below it one hop or log steps do. Where ranks share cores the ring can be faster
// (docs/decisions/0025).
constexpr size_t kMostOneLevelBytes = 16 * 1024;

const char* TwoLevelWhyNot(const Question& q) {
  if (q.kind != CollectiveKind::kAllreduce) return "no allreduce of its own";
  if (!q.grid.exists()) return "no two hosts or more with equally many ranks, two or more each";
  return q.bytes > kMostOneLevelBytes ? nullptr : "no more than 16 KiB";
}

double TwoLevelTime(const Question& q) {
  const RingSlices slices = {ChunkSliceBytes(q.kind, q.nranks, q.bytes / q.nranks, q.settings),
                             RoundSlices(q.settings)};
  const TwoLevelShape shape = {q.grid.hosts(), q.grid.members(), static_cast<double>(q.grid.members())};
  return TwoLevelSeconds(shape, static_cast<double>(q.bytes), slices, q.costs.links.near, q.costs.links.far);
}

// In the order of preference.
constexpr Rule kRules[] = {
    {Algorithm::kTwoLevel, TwoLevelWhyNot, TwoLevelTime},    {Algorithm::kTree, TreeWhyNot, TreeTime},
    {Algorithm::kLogGather, LogGatherWhyNot, LogGatherTime}, {Algorithm::kLogSteps, LogStepsWhyNot, LogStepsTime},
    {Algorithm::kOneHop, OneHopWhyNot, OneHopTime},          {Algorithm::kRing, RingWhyNot, RingTime},
};

bool CanBeChosen(CollectiveKind kind) { return kind != CollectiveKind::kNone && !IsDirect(kind) && !IsMessage(kind); }

Algorithm OnlyWay(CollectiveKind kind) {
  return IsDirect(kind) ? Algorithm::kDirect : IsMessage(kind) ? Algorithm::kMessage : Algorithm::kRing;
}

}  // namespace

size_t PlaceOf(Algorithm algorithm) {
  const auto place = std::ranges::find(kAlgorithms, algorithm, &AlgorithmName::algorithm);
  ANNULUS_CHECK(place != std::end(kAlgorithms));
  return static_cast<size_t>(place - std::begin(kAlgorithms));
}

AlgorithmChoice::AlgorithmChoice(int nranks, const PlanSettings& settings,
                                 const std::optional<MeasuredFactors>& measured)
    : nranks_(nranks),
      settings_(settings),
      grid_(settings.host_of),
      measured_(measured),
      nominal_(CostsOf(NominalLinks(settings), nranks, settings)) {
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
  if (nranks_ == 1 || !CanBeChosen(kind)) return {{OnlyWay(kind), nullptr, 0}};
  const Question question{nranks_, settings_, nominal_, grid_, kind, LargestOf(ClassOf(bytes)), IsSmall(bytes)};
  std::vector<Candidate> candidates;
  for (const Rule& rule : kRules) {
    const char* const why_not = rule.why_not(question);
    candidates.push_back({rule.algorithm, why_not, 0});
    if (why_not != nullptr) continue;
    candidates.back().seconds = rule.seconds(question.With(CostsFor(rule.algorithm, bytes), bytes));
  }
  return candidates;
}

Algorithm AlgorithmChoice::Choose(CollectiveKind kind, size_t bytes, Order order) const {
  if (nranks_ == 1 || !CanBeChosen(kind)) return OnlyWay(kind);
  const Question question{nranks_, settings_, nominal_, grid_, kind, LargestOf(ClassOf(bytes)), IsSmall(bytes)};
  if (settings_.algorithm && OrderOf(*settings_.algorithm) == Order::kRing) order = Order::kRing;
  const auto can = [&](const Rule& rule) {
    return rule.why_not(question) == nullptr && (order == Order::kOther || OrderOf(rule.algorithm) == order);
  };
  const auto is_wanted = [&](const Rule& rule) { return rule.algorithm == settings_.algorithm && can(rule); };
  const Rule* const wanted = std::ranges::find_if(kRules, is_wanted);
  if (wanted != std::end(kRules)) return wanted->algorithm;
  if (!measured_) return std::ranges::find_if(kRules, can)->algorithm;
  Algorithm fastest = Algorithm::kRing;
  double least = std::numeric_limits<double>::infinity();
  for (const Rule& rule : kRules) {
    if (!can(rule)) continue;
    const double seconds = rule.seconds(question.With(CostsFor(rule.algorithm, question.bytes), question.bytes));
    if (seconds >= least) continue;
    least = seconds;
    fastest = rule.algorithm;
  }
  return fastest;
}

double ModelledSeconds(int nranks, const PlanSettings& settings, const CostFactors& factors, Algorithm algorithm,
                       size_t bytes) {
  const JobCosts costs = Scaled(CostsOf(NominalLinks(settings), nranks, settings), factors);
  const HostGrid grid(settings.host_of);
  const bool is_small = bytes <= settings.small_bytes;
  const Question question{nranks, settings, costs, grid, CollectiveKind::kAllreduce, bytes, is_small};
  const Rule* const rule = std::ranges::find(kRules, algorithm, &Rule::algorithm);
  return rule == std::end(kRules) || rule->why_not(question) != nullptr ? 0 : rule->seconds(question);
}

}  // namespace annulus
