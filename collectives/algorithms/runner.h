// Runner: runs one collective after the other in one way; each algorithm has its own.
//
// A runner is a state machine that never blocks. Whoever owns it calls Progress until it is done.
//
// Threads: one at a time. After construction nothing allocates and nothing locks.
#pragma once

#include <vector>

#include "collectives/algorithms/work.h"
#include "collectives/core/links.h"
#include "collectives/core/schedule.h"

namespace annulus {

// A call that comes again with nothing changed but its number and its buffers, and takes less than a microsecond: it is
// neither planned nor checked anew.
class Repeatable {
 public:
  virtual ~Repeatable() = default;

  // Begins the work of the last Start again. The work's sequence and buffers have been set.
  virtual void StartAgain() = 0;
  // Does what goes at once, without system calls, and returns whether that was all. What fails here fails in Progress
  // too.
  virtual bool FinishesAtOnce() = 0;
};

class Runner {
 public:
  virtual ~Runner() = default;

  // Begins `work`; the one before must be done, or have failed. `work` stays valid until done() or the end of the
  // runner.
  virtual void Start(const ScheduleParams& params, const Work* work) = 0;

  // Moves everything that can move now, links included. Sets *moved when something changed.
  // Errors: kMismatch or kProtocol of a slice, or a link's error, with the peer's rank. They stick until the next
  // Start.
  virtual Status Progress(bool* moved);

  virtual bool done() const = 0;

  // Whether something posted on that link has not completed, or failed.
  virtual bool WaitsFor(const Endpoint* endpoint) const = 0;

  // The rank that the work waits for first when nothing moves, to receive from it before sending to it. -1 for none.
  virtual int AwaitedPeer() const = 0;

  // Whether the device still works for it: then nothing would wake a sleeping driver.
  virtual bool waits_for_device() const { return false; }

  // The links that it uses at this moment, each once.
  virtual const std::vector<Endpoint*>& endpoints() const = 0;

  // Null when the work that was started last cannot be repeated.
  virtual Repeatable* repeatable() { return nullptr; }

  // Asks that the reactor wakes when Progress may have something to do. Returns false when it has now: do not sleep.
  bool Arm();

 protected:
  // Moves the work as far as the links have moved.
  virtual Status Advance(bool* moved) = 0;

  Status ProgressLinks(bool* moved);
};

}  // namespace annulus
