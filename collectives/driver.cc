#include "collectives/driver.h"

#include <algorithm>

namespace annulus {
namespace {

// While slices keep moving the clock is read this seldom; 1,000 polls take well under a millisecond.
constexpr int kMovesPerLook = 1000;

}  // namespace

bool Driver::Run(const Call& call, const Buffers& buffers, Device* device, Deadline deadline, const WaitPolicy& policy,
                 Verdict* verdict) {
  if (control_ != nullptr) control_->Enter(call);
  engine_->Start(call, buffers, device);
  Status outcome = RunEngine(deadline, policy);
  if (!outcome.ok()) *verdict = Settle(outcome, call);
  // After a failure the rank stays inside: it has not completed the call.
  if (control_ != nullptr && outcome.ok()) control_->Leave();
  return outcome.ok();
}

bool Driver::RunMessages(const std::function<bool()>& over, const WaitPolicy& policy, Verdict* verdict) {
  const Status outcome = DriveMessages(over, policy);
  if (!outcome.ok()) *verdict = Settle(outcome, Call());
  return outcome.ok();
}

template <class Step>
Status Driver::Loop(Step step, Deadline deadline, const WaitPolicy& policy) {
  waiter_.Begin(policy);
  int moves = 0;
  for (;;) {
    bool moved = false;
    bool over = false;
    ANNULUS_RETURN_IF_ERROR(step(&moved, &over));
    if (over) return Status();
    if (messages_->busy()) ANNULUS_RETURN_IF_ERROR(messages_->Progress(&moved));
    if (Stopped()) return {Code::kAborted, "the work was aborted"};
    Nanoseconds now = 0;
    if (moved) {
      waiter_.Reset();
      if (++moves % kMovesPerLook == 0) now = Now();
    } else if (waiter_.Idle() == Waiter::Next::kSleep) {
      ANNULUS_RETURN_IF_ERROR(step(&moved, &over));
      if (over) return Status();
      if (!moved) Sleep(deadline);
      now = Now();
      waiter_.Slept(now);
    } else if (waiter_.looked()) {
      now = waiter_.now();
    }
    if (now != 0) ANNULUS_RETURN_IF_ERROR(Overdue(deadline, now));
  }
}

Status Driver::RunEngine(Deadline deadline, const WaitPolicy& policy) {
  const auto step = [this](bool* moved, bool* over) {
    Status status = engine_->Progress(moved);
    *over = engine_->done();
    return status;
  };
  return Loop(step, deadline, policy);
}

Status Driver::DriveMessages(const std::function<bool()>& over, const WaitPolicy& policy) {
  const auto step = [&over](bool* moved, bool* is_over) {
    *is_over = over();
    return Status();
  };
  return Loop(step, kNoDeadline, policy);
}

Status Driver::Overdue(Deadline deadline, Nanoseconds now) {
  if (now > deadline) return {Code::kTimeout, "the collective did not finish before its deadline"};
  return messages_->busy() ? messages_->Late(now) : Status();
}

void Driver::Sleep(Deadline deadline) {
  // Interrupt, Nudge and the control thread wake the reactor after they set what the loop looks at, so no wake-up is
  // lost.
  const bool engine_armed = engine_->done() || engine_->Arm();
  const bool messages_armed = !messages_->busy() || messages_->Arm();
  if (engine_armed && messages_armed && !Stopped()) reactor_->WaitUntil(std::min(deadline, messages_->deadline()));
}

void Driver::Interrupt() {
  interrupted_.store(true, std::memory_order_relaxed);
  reactor_->Wake();
}

Verdict Driver::Settle(const Status& failure, const Call& current) {
  const Call& call = messages_->failed().sequence > 0 ? messages_->failed() : current;
  if (HasVerdict()) return control_->verdict();
  if (control_ != nullptr && !interrupted_.load(std::memory_order_relaxed)) return control_->Report(failure, call);
  Verdict verdict;
  verdict.code = failure.code();
  verdict.call = call;
  verdict.message = failure.message();
  return verdict;
}

}  // namespace annulus
