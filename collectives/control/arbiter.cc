// The arbiter's rules, in the order in which they are tried; docs/failures.md explains them to users.
#include "collectives/control/arbiter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "collectives/control/arbiter_text.h"

namespace annulus {
namespace {

// Decides which of several reports to use. A failure that a rank found in itself or in what it received explains broken
// links around it, and a broken link explains deadlines that passed elsewhere.
int Priority(Code code) {
  switch (code) {
    case Code::kTimeout:
      return 3;
    case Code::kPeerLost:
      return 2;
    case Code::kMismatch:
      return 1;
    default:
      return 0;
  }
}

}  // namespace

void Arbiter::Died(int rank) {
  if (!ranks_[rank].left) Conclude(DeathVerdict(rank));
}

void Arbiter::Unreachable(int rank) {
  if (!ranks_[rank].left) Conclude(LostPathVerdict({rank}));
}

void Arbiter::Lost(int rank) { ranks_[rank].lost = !ranks_[rank].left; }

void Arbiter::Found(int rank, Nanoseconds now) {
  ranks_[rank].lost = false;
  ranks_[rank].given_up = false;
  if (verdict_ || !(investigating_ || doubting_)) return;
  // What it has sent meanwhile comes before a new answer.
  ranks_[rank].answered = false;
  ranks_[rank].asked = ++question_;
  query_ = true;
  deadline_ = now + kAnswerWindow;
  was_late_ = false;
}

void Arbiter::GiveUp(int rank, Nanoseconds now) {
  ranks_[rank].lost = false;
  ranks_[rank].given_up = true;
  Advance(now, now >= deadline_);
}

void Arbiter::Goodbye(int rank, const Activity& last, Nanoseconds now) {
  Record(rank, last);
  ranks_[rank].left = true;
  Advance(now);
}

void Arbiter::Report(int rank, const Status& failure, const Call& call, Nanoseconds now) {
  Rank& reporter = ranks_[rank];
  if (verdict_ || reporter.failure) return;
  const bool names_a_rank = failure.peer() >= 0 && failure.peer() < nranks();
  const Code code = failure.ok() || failure.would_block() ? Code::kInternal : failure.code();
  reporter.failure = Status(code, ForAll(failure.message(), rank), names_a_rank ? failure.peer() : Status::kNoRank,
                            failure.os_errno());
  if (IsMessage(call.kind)) {
    reporter.message = call;
  } else if (call.sequence > 0) {
    reporter.sequence = call.sequence;
    reporter.inside = true;
    reporter.calls.push_back(call);
  }
  if (!investigating_) {
    investigating_ = true;
    doubting_ = false;
    AskAnew(now);
  }
  Advance(now);
}

void Arbiter::Doubt(Nanoseconds now) {
  if (verdict_ || investigating_ || doubting_ || now < next_doubt_) return;
  doubting_ = true;
  next_doubt_ = now + kDoubtPause;
  for (Rank& rank : ranks_) {
    if (!rank.left) rank.calls.clear();  // Otherwise they would grow with each doubt.
  }
  AskAnew(now);
}

void Arbiter::AskAnew(Nanoseconds now) {
  ++question_;
  for (Rank& rank : ranks_) {
    rank.answered = false;
    rank.asked = question_;
  }
  tie_ends_ = kNoDeadline;
  query_ = true;
  was_late_ = false;
  deadline_ = now + kAnswerWindow;
  next_sign_ = investigating_ ? now + kSignInterval : kNoDeadline;
}

void Arbiter::Answer(int rank, const Activity& activity, Nanoseconds now, uint32_t question) {
  if (question < ranks_[rank].asked) return;
  // The first answer shows the rank's state at the failure. Later answers were requested to see who makes the call.
  if (!ranks_[rank].answered || tie_ends_ != kNoDeadline) Record(rank, activity);
  Advance(now);
}

void Arbiter::Record(int rank, const Activity& activity) {
  Rank& speaker = ranks_[rank];
  if (verdict_ || speaker.left) return;
  speaker.calls.insert(speaker.calls.end(), activity.recent.begin(), activity.recent.end());
  if (!speaker.failure || speaker.message) {  // The call of a reported failure says more than the rank's current one.
    speaker.sequence = activity.sequence;
    speaker.inside = activity.inside && activity.sequence > 0;
  }
  speaker.answered = true;
  speaker.given_up = false;
}

void Arbiter::Settled(int rank, const Verdict& verdict, Nanoseconds) {
  if (!ranks_[rank].left) Conclude(verdict);
}

void Arbiter::Broken(int rank, const std::string& what, Nanoseconds) {
  if (!ranks_[rank].left) Conclude(BrokenMessageVerdict(rank, what));
}

void Arbiter::Tick(Nanoseconds now) {
  if (!was_late_ && deadline() != kNoDeadline && now - deadline() > kLateTick) {
    was_late_ = true;
    deadline_ = std::max(deadline_, now + kLateTick);
  }
  Advance(now, now >= deadline_);
}

Deadline Arbiter::deadline() const {
  if (verdict_) return kNoDeadline;
  return WaitsForLost() ? next_sign_ : std::min(deadline_, next_sign_);
}

bool Arbiter::TakeQuery() {
  const bool query = query_ && !verdict_;
  query_ = false;
  return query;
}

void Arbiter::Conclude(Verdict verdict) {
  if (!verdict_) verdict_ = std::move(verdict);
}

// Ends the investigation as soon as possible. Judges when all answers have arrived or no more are expected. A verdict
// that rests on a report alone waits a moment longer for better reports. Only a tick finds that time is up: after a
// pause of this process the first answers are read when others, just as old, are still to be read.
void Arbiter::Advance(Nanoseconds now, bool time_is_up) {
  if (verdict_ || !(investigating_ || doubting_)) return;
  if (now >= next_sign_) {
    query_ = true;
    next_sign_ = now + kSignInterval;
  }
  if (WaitsForLost()) return;
  if (!AllAnswered() && !time_is_up) return;
  if (doubting_) return EndDoubt(now);
  const int reporter = ChooseReport();
  if (std::optional<Verdict> verdict = Judge(reporter)) {
    if (verdict->code == Code::kMismatch && AwaitTieBreak(now)) return;
    return Conclude(std::move(*verdict));
  }
  if (!settling_ && now < deadline_) {
    settling_ = true;
    deadline_ = std::min(deadline_, now + kSettleWindow);
  }
  if (now >= deadline_ || AllReported()) Conclude(JudgeReport(reporter));
}

bool Arbiter::WaitsForLost() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.lost; });
}

void Arbiter::EndDoubt(Nanoseconds now) {
  if (std::optional<Verdict> verdict = JudgeMismatch()) {
    if (AwaitTieBreak(now)) return;
    return Conclude(std::move(*verdict));
  }
  doubting_ = false;
  deadline_ = kNoDeadline;
}

bool Arbiter::AllAnswered() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.left || rank.answered; });
}

bool Arbiter::AllReported() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.left || rank.failure; });
}

int Arbiter::ChooseReport() const {
  int chosen = Status::kNoRank;
  for (int r = 0; r < nranks(); ++r) {
    if (!ranks_[r].failure) continue;
    if (chosen < 0 || Priority(ranks_[r].failure->code()) < Priority(ranks_[chosen].failure->code())) chosen = r;
  }
  ANNULUS_CHECK(chosen >= 0);
  return chosen;
}

// The collective that delays everyone: the earliest that a rank is still inside.
std::optional<Call> Arbiter::Concerned() const {
  std::optional<Call> concerned;
  for (const Rank& rank : ranks_) {
    if (rank.left || !rank.known() || !rank.inside) continue;
    for (const Call& call : rank.calls) {
      if (call.sequence == rank.sequence && (!concerned || call.sequence < concerned->sequence)) concerned = call;
    }
  }
  return concerned;
}

std::optional<Verdict> Arbiter::Judge(int reporter) const {
  const Code code = ranks_[reporter].failure->code();
  const bool absence_explains = code == Code::kTimeout || code == Code::kPeerLost;
  // A message concerns only two ranks, whatever collective the others are in.
  const bool message = ranks_[reporter].message.has_value();
  const std::optional<Call> concerned = message ? std::nullopt : Concerned();
  std::optional<Verdict> verdict = JudgeUnreachable();
  if (!verdict && absence_explains) verdict = JudgeLeft(reporter, concerned);
  if (!verdict && !message) verdict = JudgeMismatch();
  if (verdict || code != Code::kTimeout) return verdict;
  if (concerned) verdict = JudgeOutside(reporter, *concerned);
  if (!verdict) verdict = JudgeSilent(reporter);
  if (!verdict && concerned) verdict = JudgeInside(reporter, *concerned);
  return verdict;
}

// The ranks that are given up cannot be told anything, and each says that it and rank 0 have lost each other. So
// everybody says that, whatever else is known: there is no other verdict that all can share.
std::optional<Verdict> Arbiter::JudgeUnreachable() const {
  std::vector<int> gone;
  for (int r = 0; r < nranks(); ++r) {
    if (ranks_[r].given_up && !ranks_[r].left) gone.push_back(r);
  }
  if (gone.empty()) return std::nullopt;
  return LostPathVerdict(gone);
}

// Ranks that owe an answer and may have caused what is reported. A late message leads to one rank only.
std::vector<int> Arbiter::Silent(int reporter) const {
  const int peer = ranks_[reporter].failure->peer();
  std::vector<int> silent;
  for (int r = 0; r < nranks(); ++r) {
    const Rank& rank = ranks_[r];
    if (rank.left || rank.answered || rank.failure || (peer != Status::kNoRank && peer != r)) continue;
    silent.push_back(r);
  }
  return silent;
}

// A process that is paused looks like this for as long, and is named only if a deadline has passed and no rank is known
// to be the cause. Its pause breaks no link, since its kernel goes on.
std::optional<Verdict> Arbiter::JudgeSilent(int reporter) const {
  const std::vector<int> silent = Silent(reporter);
  if (silent.empty()) return std::nullopt;
  return SilenceVerdict(silent, reporter);
}

std::optional<Verdict> Arbiter::JudgeLeft(int reporter, const std::optional<Call>& concerned) const {
  const Status& failure = *ranks_[reporter].failure;
  for (int r = 0; r < nranks(); ++r) {
    if (!ranks_[r].left) continue;
    const bool owes = concerned && ranks_[r].completed() < concerned->sequence;
    const bool missed = failure.code() == Code::kPeerLost && failure.peer() == r;
    if (!owes && !missed) continue;
    Verdict verdict;
    verdict.code = Code::kPeerLost;
    verdict.rank = r;
    verdict.peer = reporter;
    verdict.call = concerned.value_or(Call{});
    verdict.message = RankList({r}) + " has left (its communicator was destroyed)";
    if (concerned) verdict.message += " while others are in " + CallName(*concerned);
    verdict.advice = "Every rank must call every collective before it destroys its communicator.";
    return verdict;
  }
  return std::nullopt;
}

static Verdict LateVerdict(int rank, int reporter, const Call& concerned, std::string message) {
  Verdict verdict;
  verdict.code = Code::kTimeout;
  verdict.rank = rank;
  verdict.peer = reporter;
  verdict.call = concerned;
  verdict.message = std::move(message);
  verdict.advice = AdviceFor(Code::kTimeout);
  return verdict;
}

// All who answered agree on the calls, yet time ran out, so some rank is late: the ranks that have not entered the
// collective concerned, the furthest behind. Who is silent may have entered it.
std::optional<Verdict> Arbiter::JudgeOutside(int reporter, const Call& concerned) const {
  uint64_t least = concerned.sequence;
  for (const Rank& rank : ranks_) {
    if (!rank.left && rank.known()) least = std::min(least, rank.sequence);
  }
  if (least == concerned.sequence) return std::nullopt;
  std::vector<int> outside;
  for (int r = 0; r < nranks(); ++r) {
    if (!ranks_[r].left && ranks_[r].known() && ranks_[r].sequence == least) outside.push_back(r);
  }
  const std::vector<int> silent = Silent(reporter);
  const bool one = outside.size() == 1;
  return LateVerdict(
      outside.front(), reporter, concerned,
      RankList(outside) + (one ? " has" : " have") + " not entered " + CallName(concerned) + " (" +
          (one ? "it" : "they") +
          (least == 0 ? " called no collective yet)" : " last completed #" + std::to_string(least) + ")") +
          (silent.empty() ? "" : "; " + RankList(silent) + (silent.size() == 1 ? " does" : " do") + " not respond"));
}

// Nobody is outside: the ranks that are still in the collective, if others have finished it.
std::optional<Verdict> Arbiter::JudgeInside(int reporter, const Call& concerned) const {
  const bool reporter_waits_for_later = ranks_[reporter].sequence > concerned.sequence;
  if (!reporter_waits_for_later) return std::nullopt;
  std::vector<int> inside;
  for (int r = 0; r < nranks(); ++r) {
    const Rank& rank = ranks_[r];
    if (!rank.left && rank.known() && rank.inside && rank.sequence == concerned.sequence) inside.push_back(r);
  }
  return LateVerdict(inside.front(), reporter, concerned,
                     RankList(inside) + (inside.size() == 1 ? " is" : " are") + " still in " + CallName(concerned) +
                         ", which others have completed");
}

Verdict Arbiter::JudgeReport(int reporter) const {
  const Rank& rank = ranks_[reporter];
  const Status& failure = *rank.failure;
  Verdict verdict;
  verdict.code = failure.code();
  verdict.rank = reporter;
  verdict.os_errno = failure.os_errno();
  verdict.advice = AdviceFor(failure.code());
  if (failure.peer() != Status::kNoRank && failure.peer() != reporter) {  // The report blames a peer.
    verdict.rank = failure.peer();
    verdict.peer = reporter;
  }
  const auto call = std::find_if(rank.calls.begin(), rank.calls.end(),
                                 [&](const Call& c) { return rank.inside && c.sequence == rank.sequence; });
  if (call != rank.calls.end()) verdict.call = *call;
  if (rank.message) verdict.call = *rank.message;
  if (failure.code() == Code::kPeerLost && failure.peer() != Status::kNoRank) {
    const int low = std::min(verdict.rank, verdict.peer);
    const int high = std::max(verdict.rank, verdict.peer);
    verdict.message = "the link between rank " + std::to_string(low) + " and rank " + std::to_string(high) +
                      " broke: " + failure.message();
    return verdict;
  }
  verdict.message = RankList({reporter}) + " failed" + (verdict.call.sequence ? " in " + CallName(verdict.call) : "") +
                    ": " + (failure.message().empty() ? CodeName(failure.code()) : failure.message());
  return verdict;
}

}  // namespace annulus
