#include "collectives/driver.h"

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

Status Driver::RunEngine(Deadline deadline, const WaitPolicy& policy) {
  Waiter waiter(policy);
  int moves = 0;
  for (;;) {
    bool moved = false;
    ANNULUS_RETURN_IF_ERROR(engine_->Progress(&moved));
    if (engine_->done()) return Status();
    if (Stopped()) return {Code::kAborted, "the collective was aborted"};
    bool late = false;
    if (moved) {
      waiter.Reset();
      late = ++moves % kMovesPerLook == 0 && Now() > deadline;
    } else if (waiter.Idle() == Waiter::Next::kSleep) {
      Sleep(deadline);
      late = Now() > deadline;
    } else {
      late = waiter.looked() && waiter.now() > deadline;
    }
    if (late) return {Code::kTimeout, "the collective did not finish before its deadline"};
  }
}

void Driver::Sleep(Deadline deadline) {
  // Interrupt and the control thread wake the reactor after they set what Stopped() reads, so no wake-up is lost.
  if (engine_->Arm() && !Stopped()) reactor_->WaitUntil(deadline);
}

void Driver::Interrupt() {
  interrupted_.store(true, std::memory_order_relaxed);
  reactor_->Wake();
}

Verdict Driver::Settle(const Status& failure, const Call& call) {
  if (HasVerdict()) return control_->verdict();
  if (control_ != nullptr && !interrupted_.load(std::memory_order_relaxed)) return control_->Report(failure, call);
  Verdict verdict;
  verdict.code = failure.code();
  verdict.call = call;
  verdict.message = failure.message();
  return verdict;
}

}  // namespace annulus
