// Driver: runs one collective at a time, until it is complete or a verdict ends the communicator. Whatever it waits
// for, it also tends the links that may be made again (Links::Tend).
//
// Threads: Run and RunMessages by one thread at a time; Interrupt and Nudge by any.
#pragma once

#include <atomic>
#include <functional>

#include "base/clock.h"
#include "collectives/control/control.h"
#include "collectives/core/links.h"
#include "collectives/engine/domain_queues.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/messages.h"
#include "collectives/engine/waiter.h"
#include "collectives/observe/monitor.h"
#include "transport/reactor.h"

namespace annulus {

// When a thread stops driving though the work is not done, for another thread to go on with it.
struct Patience {
  // Asked after each poll, and before a sleep; null: never.
  const std::function<bool()>* is_over = nullptr;
  Deadline wake_at = kNoDeadline;  // A sleep ends here at the latest, for is_over to be asked.
};

class Driver {
 public:
  enum class Outcome { kDone, kFailed, kPaused };

  // Time that a collective may take before the ranks are asked whether they agree on it. The interval then doubles each
  // time.
  static constexpr Nanoseconds kFirstDoubt = kSecond;

  // Drives that are over in their first step move no messages. So those that begin so long after the last look at the
  // messages begin with one.
  static constexpr Nanoseconds kMostUnseen = 50 * kMicrosecond;

  // All outlive the driver. `links` are those of engine and messages. `queues` watches in `reactor`. `control` is null
  // when there is one rank only.
  Driver(Engine* engine, Messages* messages, Links* links, DomainQueues* queues, Reactor* reactor, Control* control,
         Monitor* monitor)
      : engine_(engine),
        messages_(messages),
        links_(links),
        queues_(queues),
        reactor_(reactor),
        control_(control),
        monitor_(monitor) {}

  // Runs `call` for up to `timeout`; messages move meanwhile. On failure fills *verdict, which is the same on every
  // rank, and returns kFailed; the buffers stay borrowed until the domains are drained and the links are closed. After
  // kPaused only GoOn may follow, soon, perhaps by another thread; until then nobody watches the call's deadline.
  Outcome Run(const Call& call, const Buffers& buffers, Nanoseconds timeout, const WaitPolicy& policy,
              const Patience& patience, Verdict* verdict);
  Outcome GoOn(const WaitPolicy& policy, const Patience& patience, Verdict* verdict);
  // Whether a collective waits for GoOn, which it needs also when its communicator has failed meanwhile.
  bool paused() const { return drive_.is_paused; }
  // The same for one that waits for EndAgain or Resume.
  bool has_begun() const { return has_begun_; }
  // Whether it was interrupted, or Control has a verdict, which nobody else may have noted yet. Any thread.
  bool Stopped() const { return interrupted_.load(std::memory_order_relaxed) || HasVerdict(); }

  // Runs a call that the engine repeats (Engine::Repeats) as far as it goes at once, which takes a microsecond or two,
  // or a little more for tens of kilobytes. Returns whether it is done; if not, Resume does the rest as Run does.
  // MayRepeat returns whether nothing else needs the driver's attention. The clock is read only for a sample of the
  // calls, which stands for the others.
  bool MayRepeat() const { return !messages_->busy() && !Stopped() && monitor_->trace() == nullptr; }
  bool Repeat(const Call& call, const void* input, void* output);
  // Repeat in two steps, for a call that is only being started: the first sends what its peers need from this rank, and
  // returns what it still waits for. After it only the second may follow, or Resume. `may_end`: the second follows at
  // once if there is nothing left, so the first may look for what comes.
  Awaits BeginAgain(const Call& call, const void* input, void* output, bool may_end);
  bool EndAgain(const Call& call);
  Outcome Resume(const Call& call, Nanoseconds timeout, const WaitPolicy& policy, const Patience& patience,
                 Verdict* verdict);

  // Whether the next functions may do anything.
  bool MayMoveAtOnce() const { return !Stopped() && monitor_->trace() == nullptr; }
  // Whether nothing that was taken on would have to be driven meanwhile, so that messages may be looked for again and
  // again.
  bool MayLookAgain() const {
    return !passes_.owes_drive && MayMoveAtOnce() && (!messages_->has_active() || messages_->HasOnlyBegun());
  }
  // As Messages::MoveAtOnce. Does nothing while a timeline is kept, and now and then while there are other messages,
  // posted ones (`others_posted`) or not, so that those move too.
  AtOnce MoveAtOnce(const Message& message, int polls, bool others_posted) {
    if (!MayMoveAtOnce() || !MayPass(others_posted || messages_->has_active())) return AtOnce::kNo;
    return MoveMessage([&] { return messages_->MoveAtOnce(message, polls); });
  }
  // The same for a receive, and for a send of which Messages::CopiesWhole is true.
  AtOnce ReceiveAtOnce(const Message& message, int polls, bool others_posted) {
    if (!MayMoveAtOnce() || !MayPass(others_posted || messages_->has_active())) return AtOnce::kNo;
    return MoveMessage([&] { return messages_->ReceiveAtOnce(message, polls); });
  }
  AtOnce SendWhole(const Message& message, bool others_posted) {
    if (!MayMoveAtOnce() || !MayPass(others_posted || messages_->has_active())) return AtOnce::kNo;
    return MoveMessage([&] { return messages_->SendWhole(message); });
  }
  // The same for a send that is only being started: nobody would drive the others in its place.
  AtOnce StartAtOnce(const Message& message) {
    if (!MayMoveAtOnce()) return AtOnce::kNo;
    return MoveMessage([&] { return messages_->MoveAtOnce(message, 0); });
  }
  // StartAtOnce where MayMoveAtOnce and Messages::CopiesWhole are true.
  AtOnce StartWhole(const Message& message) {
    return MoveMessage([&] { return messages_->SendWhole(message); });
  }
  // As Messages::EndBegun, tried up to `polls` times.
  void* EndBegun(int polls) { return messages_->has_active() ? EndAnyBegun(polls) : nullptr; }

  // Moves messages until patience.is_over, which is not null. Returns false when it failed, as Run does.
  bool RunMessages(const WaitPolicy& policy, const Patience& patience, Verdict* verdict);

  // Makes the driving thread look at what is new: a message posted, or what Patience::is_over depends on.
  void Nudge() { reactor_->Wake(); }

  // Makes the current and all later calls of Run fail with kAborted, on this rank alone.
  void Interrupt();

 private:
  // Messages that move at once before the others have their turn. Driving them takes about as long as three such
  // messages.
  static constexpr uint32_t kMostPassed = 32;
  // The clock is read for one of so many short drives, which stands for the others.
  static constexpr uint32_t kShortDrivesPerLook = 64;

  // What is being driven.
  struct Drive {
    Call call;
    Nanoseconds begin = 0;
    Deadline deadline = kNoDeadline;
    Deadline doubt_at = kNoDeadline;  // Time of the next Control::Doubt; set within a collective.
    Nanoseconds doubt_after = 0;
    int moves = 0;  // Moves so far.
    bool is_paused = false;
  };

  // Calls `moves`, and counts the time that it took if a message has moved. The clock is read as in Repeat.
  template <class Moves>
  AtOnce MoveMessage(Moves moves) {
    const bool measured = IsSample();
    const Nanoseconds begin = measured ? Now() : 0;
    const AtOnce moved = moves();
    if (moved == AtOnce::kNo || moved == AtOnce::kNever) return moved;
    const Nanoseconds took = measured ? Now() - begin : short_drives_.took.value();
    if (measured) short_drives_.took.Learn(took);
    monitor_->CountMessagesDrive(took);
    return moved;
  }
  void* EndAnyBegun(int polls);
  // Whether the next short drive is of the sample.
  bool IsSample() { return ++short_drives_.number % kShortDrivesPerLook == 0; }
  // The end of Repeat, which began at that time; 0: it is not of the sample.
  bool FinishesAtOnce(const Call& call, Nanoseconds begin);
  // Now and then the caller has to drive all messages: nobody else may do so while others keep moving at once.
  bool MayPass(bool has_others) {
    if (!has_others || ++passes_.passed % kMostPassed != 0) return true;
    passes_.owes_drive = true;
    return false;
  }
  void Begin(const Call& call, Nanoseconds begin, Nanoseconds timeout);
  // Moves the messages and looks at their deadlines when a drive begins, if that was not done lately.
  Status LookAfterMessages() {
    return messages_->busy() && drive_.begin - messages_seen_ >= kMostUnseen ? MoveUnseen() : Status();
  }
  Status MoveUnseen();
  Status RunEngine(const WaitPolicy& policy, const Patience& patience);
  // Calls step(&moved, &over) and moves messages until over; waits in between, and wakes at `wake_at`.
  template <class Step>
  Status Loop(Step step, Deadline deadline, const WaitPolicy& policy, Deadline wake_at);
  bool HasVerdict() const { return control_ != nullptr && control_->has_verdict(); }
  int AwaitedPeer() const { return engine_->done() ? messages_->AwaitedPeer() : engine_->AwaitedPeer(); }
  void EndWait() {
    if (monitor_->trace() != nullptr) [[unlikely]] {
      EndTracedWait();
    } else if (monitor_->waiting()) {
      monitor_->EndWait(Now());
    } else if (waiter_.idle_polls() > 0) {
      monitor_->AddWait(awaited_, waiter_.IdleTime());
    }
  }
  void EndTracedWait();
  void EndDrive(Nanoseconds begin);
  void Sleep(Deadline until);
  Status Overdue(Deadline deadline, Nanoseconds now);
  void Doubt(Nanoseconds now);
  Outcome End(const Status& outcome, Verdict* verdict);
  // Without words where there is no memory for them.
  Verdict FindVerdict(const Status& failure, const Call& current);
  Verdict MakeVerdict(const Status& failure, const Call& current);

  Engine* const engine_;
  Messages* const messages_;
  Links* const links_;
  DomainQueues* const queues_;
  Reactor* const reactor_;
  Control* const control_;
  Monitor* const monitor_;
  Waiter waiter_;  // The waiter of the driving thread.
  struct {
    UsualTime took;
    uint32_t number = UINT32_MAX;  // The first one is measured.
  } short_drives_;
  struct {
    uint32_t passed = 0;      // Messages that moved at once while there were others.
    bool owes_drive = false;  // It is time to drive all messages.
  } passes_;
  Nanoseconds messages_seen_ = 0;  // Time of the latest MoveUnseen.
  Drive drive_;
  bool has_begun_ = false;
  int awaited_ = -1;  // Peer that was awaited when movement stopped; -1: none.
  std::atomic<bool> interrupted_{false};
};

}  // namespace annulus
