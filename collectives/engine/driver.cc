#include "collectives/engine/driver.h"

#include <algorithm>
#include <new>
#include <utility>

#include "collectives/observe/trace.h"

namespace annulus {
namespace {

// While slices keep moving the clock is read once per this many moves; 1,000 polls take well under a millisecond.
constexpr int kMovesPerLook = 1000;

// Whoever began to drive must end it on all ranks, so memory that runs out in between is a failure like others.
template <class Work>
Status WithinMemory(Work work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory);
  }
}

// A drive with fewer moves than this, and less than a few idle polls, is over within a microsecond or so.
constexpr int kMostShortMoves = 16;

}  // namespace

Driver::Outcome Driver::Run(const Call& call, const Buffers& buffers, Nanoseconds timeout, const WaitPolicy& policy,
                            const Patience& patience, Verdict* verdict) {
  if (control_ != nullptr) control_->Enter(call);
  Begin(call, Now(), timeout);
  if (Trace* const trace = monitor_->trace(); trace != nullptr) trace->Begin(call, drive_.begin);
  const Status started = WithinMemory([&] {
    engine_->Start(call, buffers);
    return Status();
  });
  return started.ok() ? GoOn(policy, patience, verdict) : End(started, verdict);
}

bool Driver::Repeat(const Call& call, const void* input, void* output) {
  if (control_ != nullptr) control_->Enter(call);
  const Nanoseconds begin = IsSample() ? Now() : 0;
  engine_->StartAgain(call.sequence, input, output);
  return FinishesAtOnce(call, begin);
}

Awaits Driver::BeginAgain(const Call& call, const void* input, void* output, bool may_end) {
  if (control_ != nullptr) control_->Enter(call);
  engine_->StartAgain(call.sequence, input, output);
  has_begun_ = true;
  Awaits awaits = Awaits::kAll;
  const Status sent = WithinMemory([&] {
    awaits = engine_->SendFirst(may_end);
    return Status();
  });
  static_cast<void>(sent);  // Whoever goes on with it meets the same error.
  return awaits;
}

bool Driver::EndAgain(const Call& call) {
  const bool ended = FinishesAtOnce(call, IsSample() ? Now() : 0);
  has_begun_ = !ended;
  return ended;
}

bool Driver::FinishesAtOnce(const Call& call, Nanoseconds begin) {
  if (!engine_->FinishesAtOnce()) return false;
  const Nanoseconds took = begin != 0 ? Now() - begin : short_drives_.took.value();
  if (begin != 0) short_drives_.took.Learn(took);
  monitor_->CountDrive(call, took);
  if (control_ != nullptr) control_->Leave();
  return true;
}

Driver::Outcome Driver::Resume(const Call& call, Nanoseconds timeout, const WaitPolicy& policy,
                               const Patience& patience, Verdict* verdict) {
  Begin(call, Now(), timeout);
  return GoOn(policy, patience, verdict);
}

void Driver::Begin(const Call& call, Nanoseconds begin, Nanoseconds timeout) {
  const Deadline deadline = timeout > kNoDeadline - begin ? kNoDeadline : begin + timeout;
  drive_ = {call, begin, deadline, begin + kFirstDoubt, kFirstDoubt};
  has_begun_ = false;
  monitor_->BeginDrive(call, begin);
}

Driver::Outcome Driver::GoOn(const WaitPolicy& policy, const Patience& patience, Verdict* verdict) {
  const Status outcome = WithinMemory([&] { return RunEngine(policy, patience); });
  drive_.is_paused = outcome.ok() && !engine_->done();
  if (drive_.is_paused) {
    EndWait();
    drive_.moves = kMostShortMoves;  // A drive with a pause stands for no others.
    return Outcome::kPaused;
  }
  return End(outcome, verdict);
}

Driver::Outcome Driver::End(const Status& outcome, Verdict* verdict) {
  drive_.doubt_at = kNoDeadline;
  EndDrive(drive_.begin);
  if (Trace* const trace = monitor_->trace(); trace != nullptr) trace->End(outcome.ok(), Now());
  if (!outcome.ok()) *verdict = FindVerdict(outcome, drive_.call);
  // After a failure the rank stays inside: it has not completed the call.
  if (control_ != nullptr && outcome.ok()) control_->Leave();
  return outcome.ok() ? Outcome::kDone : Outcome::kFailed;
}

void* Driver::EndAnyBegun(int polls) {
  void* ended = nullptr;
  if (!MayMoveAtOnce() || !messages_->HasOnlyBegun()) return ended;
  MoveMessage([&] {
    while (ended == nullptr && polls-- > 0) ended = messages_->EndBegun();
    return ended == nullptr ? AtOnce::kNo : AtOnce::kDone;
  });
  return ended;
}

bool Driver::RunMessages(const WaitPolicy& policy, const Patience& patience, Verdict* verdict) {
  const Nanoseconds begin = Now();
  drive_ = Drive();
  drive_.begin = begin;
  monitor_->BeginDrive(Call(), begin);
  const auto step = [&patience](bool*, bool* over) {
    *over = (*patience.is_over)();
    return Status();
  };
  const Status outcome = WithinMemory([&] { return Loop(step, kNoDeadline, policy, patience.wake_at); });
  EndDrive(begin);
  if (!outcome.ok()) *verdict = FindVerdict(outcome, Call());
  return outcome.ok();
}

template <class Step>
Status Driver::Loop(Step step, Deadline deadline, const WaitPolicy& policy, Deadline wake_at) {
  waiter_.Begin(policy);
  ANNULUS_RETURN_IF_ERROR(LookAfterMessages());
  for (;;) {
    bool moved = false;
    bool over = false;
    ANNULUS_RETURN_IF_ERROR(step(&moved, &over));
    if (over) return Status();
    // Messages of a communicator that has failed or is stopping have ended already.
    if (Stopped()) return {Code::kAborted, "the work was aborted"};
    if (messages_->busy()) ANNULUS_RETURN_IF_ERROR(messages_->Progress(&moved));
    passes_.owes_drive = false;
    Nanoseconds now = 0;
    if (moved) {
      EndWait();
      waiter_.Reset();
      if (++drive_.moves % kMovesPerLook == 0) now = Now();
    } else {
      if (waiter_.idle_polls() == 0 && !monitor_->waiting()) awaited_ = AwaitedPeer();
      const Waiter::Next next = waiter_.Idle();
      if (waiter_.looked()) {
        now = waiter_.now();
        if (!monitor_->waiting()) monitor_->BeginWait(waiter_.idle_since(), awaited_);
      }
      if (next == Waiter::Next::kSleep) {
        ANNULUS_RETURN_IF_ERROR(step(&moved, &over));
        if (over) return Status();
        if (!moved) Sleep(std::min(deadline, wake_at));
        now = Now();
        waiter_.Slept(now);
      }
    }
    if (now == 0) continue;
    ANNULUS_RETURN_IF_ERROR(Overdue(deadline, now));
    // A step follows before any sleep, and sees what has moved.
    links_->TendWhenDue(now);
  }
}

Status Driver::RunEngine(const WaitPolicy& policy, const Patience& patience) {
  const auto step = [this, &patience](bool* moved, bool* over) {
    Status status = engine_->Progress(moved);
    *over = engine_->done() || (patience.is_over != nullptr && (*patience.is_over)());
    return status;
  };
  ANNULUS_RETURN_IF_ERROR(Loop(step, drive_.deadline, policy, patience.wake_at));
  // Whoever asks again and again whether the call is done may stay for a poll each time.
  return engine_->done() ? Status() : Overdue(drive_.deadline, Now());
}

// A message is late if it was so at the last look: then it had time to end since, also where this process was stopped.
Status Driver::MoveUnseen() {
  const Nanoseconds last = std::exchange(messages_seen_, drive_.begin);
  if (Stopped()) return Status();
  bool moved = false;
  ANNULUS_RETURN_IF_ERROR(messages_->Progress(&moved));
  passes_.owes_drive = false;
  return messages_->Late(last);
}

Status Driver::Overdue(Deadline deadline, Nanoseconds now) {
  if (now > deadline) return {Code::kTimeout, "the collective did not finish before its deadline"};
  if (now >= drive_.doubt_at) Doubt(now);
  return messages_->busy() ? messages_->Late(now) : Status();
}

void Driver::Doubt(Nanoseconds now) {
  if (control_ != nullptr) control_->Doubt();
  drive_.doubt_after *= 2;
  drive_.doubt_at = now + drive_.doubt_after;
}

void Driver::EndTracedWait() {
  const bool known = monitor_->waiting();
  if (!known && waiter_.idle_polls() == 0) return;
  const Nanoseconds now = Now();
  monitor_->trace()->AddWait(awaited_, known ? monitor_->waiting_since() : now - waiter_.IdleTime(), now);
  if (known) {
    monitor_->EndWait(now);
  } else {
    monitor_->AddWait(awaited_, waiter_.IdleTime());
  }
}

// Reading the clock would take a tenth of the shortest drives, so only a sample of them is measured and stands for the
// rest.
void Driver::EndDrive(Nanoseconds begin) {
  const bool is_short = !waiter_.has_looked() && drive_.moves < kMostShortMoves;
  if (is_short || monitor_->trace() != nullptr) EndWait();
  if (is_short && !IsSample()) return monitor_->EndDrive(short_drives_.took.value());
  const Nanoseconds now = Now();
  if (monitor_->waiting()) monitor_->EndWait(now);
  if (is_short) short_drives_.took.Learn(now - begin);
  monitor_->EndDrive(now - begin);
}

void Driver::Sleep(Deadline until) {
  // Interrupt, Nudge and the control thread wake the reactor after they set what the loop looks at, so no wake-up is
  // lost.
  const bool engine_armed = engine_->done() || engine_->Arm();
  const bool messages_armed = !messages_->busy() || messages_->Arm();
  const bool queues_armed = queues_->Arm();
  if (!engine_armed || !messages_armed || !queues_armed || Stopped()) return;
  monitor_->CountSleep();
  Trace* const trace = monitor_->trace();
  const Nanoseconds begin = trace != nullptr ? Now() : 0;
  const Deadline look_at = std::min(engine_->done() ? kNoDeadline : engine_->look_at(),
                                    messages_->busy() ? messages_->look_at() : kNoDeadline);
  reactor_->WaitUntil(std::min({until, drive_.doubt_at, messages_->deadline(), look_at, links_->tend_at()}));
  if (trace != nullptr) trace->AddSleep(begin, Now());
}

void Driver::Interrupt() {
  interrupted_.store(true, std::memory_order_relaxed);
  reactor_->Wake();
}

Verdict Driver::FindVerdict(const Status& failure, const Call& current) {
  try {
    const bool has_words = failure.code() != Code::kOutOfMemory || !failure.message().empty();
    return MakeVerdict(has_words ? failure : Status(Code::kOutOfMemory, "no memory was left while it drove its calls"),
                       current);
  } catch (const std::bad_alloc&) {  // The others learn of it when this rank leaves, or at their deadlines.
    Verdict verdict;
    verdict.code = failure.code();
    return verdict;
  }
}

Verdict Driver::MakeVerdict(const Status& failure, const Call& current) {
  const Call& call = messages_->failed().sequence > 0 ? messages_->failed() : current;
  if (HasVerdict()) return control_->verdict();
  if (control_ != nullptr && !interrupted_.load(std::memory_order_relaxed)) {
    const Deadline until = std::min(drive_.deadline, messages_->deadline());
    return control_->Report(failure, call, until == kNoDeadline ? 0 : until);
  }
  Verdict verdict;
  verdict.code = failure.code();
  verdict.call = call;
  verdict.rank = failure.peer();
  verdict.message = failure.message();
  return verdict;
}

}  // namespace annulus
