// FailureRecord: what went wrong on one communicator: the verdict that ended it, if one did, and the calls that were
// refused, which concern nobody else.
//
// Threads: any. It has a lock of its own, which is held while it asks its Surroundings, so these must not call it back.
#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <optional>

#include "base/status.h"
#include "collectives/control/verdict.h"

namespace annulus {

// The latest failure, as annulus_comm_last_error tells it.
struct ErrorRecord {
  Verdict verdict;
  bool failed = false;
};

class FailureRecord {
 public:
  // What the record asks the rest of its communicator.
  class Surroundings {
   public:
    virtual ~Surroundings() = default;
    // The verdict that the ranks were told, null while there is none.
    virtual const Verdict* Told() = 0;
    // The call that a verdict about no call in particular (a rank died) ended here; sequence 0 when there was none.
    virtual Call Interrupted() = 0;
    // Tells users of the verdict as it is recorded. Called once.
    virtual void Announce(const Verdict& verdict) = 0;
    // Writes the trace: the process may not come to its end.
    virtual void KeepTrace() = 0;
  };

  // `surroundings` outlives the record.
  FailureRecord(int rank, Surroundings* surroundings) : rank_(rank), surroundings_(surroundings), refusals_(1) {}

  // Whether a verdict is recorded. Takes no lock.
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // The recorded verdict; it never changes. Only once ended().
  const Verdict& verdict() const { return fatal_.verdict; }

  // Records the verdict that the ranks were told, if there is one, and keeps the trace then. Returns ended(), and sets
  // *code if so.
  bool CheckEnded(Code* code);

  // Records the verdict that ends the communicator, unless one did already.
  void End(const Verdict& verdict);

  // Records a call that was refused: nothing was sent.
  void Refuse(const Status& status);

  // The latest failure. The record never changes; it is kept while the communicator lives, or, when it is only a
  // refused call, until kKeptRefusals more calls were refused.
  static constexpr size_t kKeptRefusals = 64;
  const ErrorRecord& Latest();

 private:
  // Both with mu_ held.
  void CheckTold();
  void Record(const Verdict& verdict);

  const int rank_;
  Surroundings* const surroundings_;
  std::mutex mu_;
  ErrorRecord fatal_;                // Constant once ended_.
  std::list<ErrorRecord> refusals_;  // The newest last; never empty.
  std::atomic<bool> ended_{false};
};

}  // namespace annulus
