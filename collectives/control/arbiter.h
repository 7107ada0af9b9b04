// Arbiter: decides on rank 0 what went wrong. Its inputs are the ranks' messages and the time; its outputs are queries
// and at most one verdict.
//
// Certain facts decide at once: an abort, a rank whose control connection closed without a goodbye, a broken control
// message. A report of a failure only says what one rank sees, so it opens an investigation: every rank is asked what
// it is doing, and the answers separate the cause from its consequences (docs/failures.md lists the rules in order).
//
// Pure: no sockets, no clock, no thread; the same code judges under simulation. Work per event is O(nranks).
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collectives/control/control_activity.h"
#include "collectives/control/verdict.h"

namespace annulus {

class Arbiter {
 public:
  // Time that an investigation waits for answers. The control thread of a live rank answers within milliseconds even
  // when its machine is overloaded. One whose process was paused, or has used up its share of the processor (CFS
  // throttling), takes some hundred. The connections of a killed process have long been closed by then.
  static constexpr Nanoseconds kAnswerWindow = kSecond;
  // Time that a rank which knows more may still report, when all answers are in and only a report is left as evidence.
  // The rank with the cause closes its links, and neighbours may notice that before its own report arrives.
  static constexpr Nanoseconds kSettleWindow = 50 * kMillisecond;

  // Time to break a tie. A mismatch may have equally many ranks on both sides, as while only two have made the call.
  // The others may take kTieWindow to make it and so decide who is at fault; they are asked again every kTieInterval.
  // Ranks in step follow within milliseconds, on an overloaded machine within some hundred.
  static constexpr Nanoseconds kTieWindow = 500 * kMillisecond;
  static constexpr Nanoseconds kTieInterval = 20 * kMillisecond;

  // Time after a doubt in which other doubts are ignored. It is less than the time after which ranks doubt first
  // (Driver::kFirstDoubt), so that the last rank to make a call is heard once all are inside.
  static constexpr Nanoseconds kDoubtPause = 500 * kMillisecond;

  // While an investigation lasts, all ranks are asked again at this interval. So those that wait for the verdict know
  // that rank 0 is at work.
  static constexpr Nanoseconds kSignInterval = 500 * kMillisecond;

  // A tick that comes later than this shows that this process was paused. Answers may be waiting unread, so that tick
  // does not find anybody silent; the next one, as much later, may.
  static constexpr Nanoseconds kLateTick = 200 * kMillisecond;

  explicit Arbiter(int nranks) : ranks_(nranks) {}

  // The control connection of `rank` ended for good, in an orderly way or by a reset.
  void Died(int rank);
  // The same, but because the path to it carries nothing any more.
  void Unreachable(int rank);
  // The control connection of `rank` broke, and another may take its place. Until Found, GiveUp, Died or Unreachable no
  // reports are judged, because this rank may know the cause.
  void Lost(int rank);
  void Found(int rank, Nanoseconds now);
  // The path to it has carried nothing for too long. Unless it comes back before the verdict, or something decides at
  // once, the verdict is that it and rank 0 have lost each other.
  void GiveUp(int rank, Nanoseconds now);
  // `rank` destroys its communicator; `last` is its activity before that.
  void Goodbye(int rank, const Activity& last, Nanoseconds now);
  // `failure` happened on `rank` in `call` (sequence 0: outside any). Its driving thread now waits for the verdict.
  void Report(int rank, const Status& failure, const Call& call, Nanoseconds now);
  // `question` is the number of the query that it answers: an answer that was long on its way says where the rank was.
  void Answer(int rank, const Activity& activity, Nanoseconds now, uint32_t question = UINT32_MAX);
  // Some rank has waited long in a collective: asks all ranks whether they agree on their calls. Only a mismatch, which
  // is certain, leads to a verdict; deadlines handle slow and absent ranks.
  void Doubt(Nanoseconds now);
  // `rank` settled on a verdict alone: it aborted, or waited too long for the common one. There is only one verdict, so
  // this becomes everyone's.
  void Settled(int rank, const Verdict& verdict, Nanoseconds now);
  // `rank` sent something that is not a control message.
  void Broken(int rank, const std::string& what, Nanoseconds now);
  void Tick(Nanoseconds now);

  // Returns true once per query: the caller then sends it to every rank that is present, including itself.
  bool TakeQuery();
  // Number of the query, which its answers repeat.
  uint32_t question() const { return question_; }
  // Whether answers are due from this rank.
  bool investigating() const { return investigating_ && !verdict_; }
  bool awaits(int rank) const { return investigating() && !ranks_[rank].answered && !ranks_[rank].left; }
  // When the answers of this investigation are due.
  Deadline answers_due() const { return deadline_; }
  // Time at which Tick is due; kNoDeadline when it is not.
  Deadline deadline() const;
  // Set once and then constant.
  const std::optional<Verdict>& verdict() const { return verdict_; }

 private:
  struct Rank {
    bool left = false;      // Said goodbye.
    bool lost = false;      // Has no control connection.
    bool given_up = false;  // Had none that carries anything for too long.
    bool answered = false;  // Its activity below is known.
    uint32_t asked = 0;     // First question whose answer counts.
    std::optional<Status> failure;
    std::optional<Call> message;  // The call that failed, if it was a message.
    uint64_t sequence = 0;
    bool inside = false;
    std::vector<Call> calls;  // Unordered; may contain duplicates.

    // Whether sequence and inside say where the rank is now.
    bool known() const { return answered || (failure && !message); }
    // Number of collectives that the rank has finished.
    uint64_t completed() const { return inside ? sequence - 1 : sequence; }
  };

  using CallsByRank = std::map<int, Call>;

  int nranks() const { return static_cast<int>(ranks_.size()); }
  void Record(int rank, const Activity& activity);
  void Conclude(Verdict verdict);
  void Advance(Nanoseconds now, bool time_is_up = false);
  void EndDoubt(Nanoseconds now);
  void AskAnew(Nanoseconds now);
  bool WaitsForLost() const;
  bool AllAnswered() const;
  bool AllReported() const;
  int ChooseReport() const;
  std::optional<Call> Concerned() const;
  // The verdict that the evidence supports now, or none when only the report itself is left.
  std::optional<Verdict> Judge(int reporter) const;
  std::optional<Verdict> JudgeUnreachable() const;
  std::vector<int> Silent(int reporter) const;
  std::optional<Verdict> JudgeSilent(int reporter) const;
  std::optional<Verdict> JudgeLeft(int reporter, const std::optional<Call>& concerned) const;
  std::optional<Verdict> JudgeMismatch() const;
  CallsByRank Mismatch() const;
  bool TieMayBreak() const;
  bool AwaitTieBreak(Nanoseconds now);
  std::optional<Verdict> JudgeOutside(int reporter, const Call& concerned) const;
  std::optional<Verdict> JudgeInside(int reporter, const Call& concerned) const;
  Verdict JudgeReport(int reporter) const;

  std::vector<Rank> ranks_;
  bool investigating_ = false;
  bool doubting_ = false;  // Never while investigating.
  bool settling_ = false;
  bool query_ = false;
  bool was_late_ = false;  // A tick was, since the last question.
  uint32_t question_ = 0;
  Deadline deadline_ = kNoDeadline;
  Deadline next_sign_ = kNoDeadline;  // Set while investigating.
  Deadline tie_ends_ = kNoDeadline;   // Set while a tie is waiting to be broken.
  Deadline next_doubt_ = 0;
  std::optional<Verdict> verdict_;
};

}  // namespace annulus
