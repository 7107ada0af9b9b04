// The arbiter's rules about calls of the same number that differ between ranks.
#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "collectives/control/arbiter.h"
#include "collectives/control/arbiter_text.h"
#include "collectives/control/parties.h"

namespace annulus {
namespace {

using CallsByRank = std::map<int, Call>;

Parties SplitByCall(const CallsByRank& calls) {
  std::vector<int> ranks;
  for (const auto& entry : calls) ranks.push_back(entry.first);
  return PartiesOf(ranks, [&](int left, int right) { return calls.at(left) == calls.at(right); });
}

Verdict MismatchVerdict(const CallsByRank& calls, int nranks) {
  const Blame blame = BlameOf(SplitByCall(calls), nranks);
  Verdict verdict;
  verdict.code = Code::kMismatch;
  verdict.rank = blame.odd.back();
  verdict.peer = blame.rest.front();
  verdict.call = calls.at(blame.rest.front());
  verdict.message = Difference(RankList(blame.odd), calls.at(blame.odd.back()), blame.others, verdict.call);
  verdict.advice = AdviceFor(Code::kMismatch);
  return verdict;
}

}  // namespace

std::optional<Verdict> Arbiter::JudgeMismatch() const {
  const CallsByRank calls = Mismatch();
  if (calls.empty()) return std::nullopt;
  return MismatchVerdict(calls, nranks());
}

// Different calls with the same number are always an error of the program, so the earliest such number counts, finished
// or not. Returns these calls; empty when all agree.
Arbiter::CallsByRank Arbiter::Mismatch() const {
  std::map<uint64_t, CallsByRank> calls;
  for (int r = 0; r < nranks(); ++r) {
    for (const Call& call : ranks_[r].calls) calls[call.sequence].emplace(r, call);
  }
  for (auto& [sequence, of_sequence] : calls) {
    if (SplitByCall(of_sequence).size() > 1) return std::move(of_sequence);
  }
  return {};
}

// Whether no party of a mismatch is the largest, and a rank that is on its way to that call may join one.
bool Arbiter::TieMayBreak() const {
  const CallsByRank calls = Mismatch();
  std::vector<size_t> sizes;
  for (const std::vector<int>& party : SplitByCall(calls)) sizes.push_back(party.size());
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  if (sizes.size() < 2 || sizes[0] > sizes[1]) return false;
  const uint64_t sequence = calls.begin()->second.sequence;
  return std::any_of(ranks_.begin(), ranks_.end(), [sequence](const Rank& rank) {
    return !rank.left && !rank.failure && rank.answered && rank.sequence < sequence;
  });
}

// Whether to delay the verdict on a mismatch, up to kTieWindow; asks all ranks again every kTieInterval.
bool Arbiter::AwaitTieBreak(Nanoseconds now) {
  if (!TieMayBreak() || now >= tie_ends_) return false;
  if (tie_ends_ == kNoDeadline) {
    tie_ends_ = now + kTieWindow;
  } else if (now >= deadline_) {
    query_ = true;
  } else {
    return true;
  }
  deadline_ = std::min(now + kTieInterval, tie_ends_);
  return true;
}

}  // namespace annulus
