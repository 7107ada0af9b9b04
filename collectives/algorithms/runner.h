// Runner: runs collectives with one algorithm, one after the other. Each algorithm has its own runner.
//
// A runner is a state machine that never blocks. Its owner calls Progress until it is done.
//
// Threads: one at a time. Nothing allocates or locks after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "collectives/algorithms/work.h"
#include "collectives/core/links.h"
#include "collectives/core/schedule.h"

namespace annulus {

// What a call that was begun still waits for: nothing, what others send, or also that its own data leaves.
enum class Awaits : uint8_t { kNothing, kArrivals, kAll };

// A call that is repeated with nothing changed but its number and its buffers. It takes little more than its data,
// because it is neither planned nor checked again.
class Repeatable {
 public:
  virtual ~Repeatable() = default;

  // Begins the work of the last Start again. The work's sequence and buffers are already set.
  virtual void StartAgain() = 0;
  // Sends what can leave at once without system calls, but for one that wakes a peer that sleeps, for a caller that
  // looks for the rest later; if it `looks`, once for what may have come. After kNothing FinishesAtOnce does the rest.
  // An error here is also returned by Progress.
  virtual Awaits SendFirst(bool looks) = 0;
  // Does what can be done at once, without system calls, and returns whether that was all. An error here is also
  // returned by Progress.
  virtual bool FinishesAtOnce() = 0;
};

class Runner {
 public:
  virtual ~Runner() = default;

  // Begins `work`; the previous work must be done or have failed. `work` stays valid until done() or the end of the
  // runner.
  virtual void Start(const ScheduleParams& params, const Work* work) = 0;

  // Moves everything that can move now, links included. Sets *moved when something changed.
  // Errors: kMismatch or kProtocol of a slice, or a link's error, with the peer's rank. They stick until the next
  // Start.
  virtual Status Progress(bool* moved);

  virtual bool done() const = 0;

  // Whether the ranks have agreed, with nothing changed, that this call takes another algorithm.
  virtual bool declined() const { return false; }

  // Whether something posted on that link is not complete, or failed.
  virtual bool WaitsFor(const Endpoint* endpoint) const = 0;

  // Rank that the work waits for when nothing moves: first to receive from it, then to send to it. -1 for none.
  virtual int AwaitedPeer() const = 0;

  // Links that it uses at this moment, each once.
  virtual const std::vector<Endpoint*>& endpoints() const = 0;

  // The interface to repeat the latest work; null when it cannot be repeated.
  virtual Repeatable* repeatable() { return nullptr; }

  // Asks the reactor to wake when a link has something to do for Progress. Returns false if one has something now: then
  // do not sleep. Devices are armed by DomainQueues.
  virtual bool Arm();
  // When to look again, after Arm, at what wakes nobody; kNoDeadline where there is no such thing.
  virtual Deadline look_at() const { return kNoDeadline; }

 protected:
  // Moves the work as far as the links have moved.
  virtual Status Advance(bool* moved) = 0;

  Status ProgressLinks(bool* moved);
};

}  // namespace annulus
