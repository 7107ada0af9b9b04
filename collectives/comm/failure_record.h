// FailureRecord: the failures of one communicator: the verdict that ended it, if any, and the refused calls, which
// concern no other rank.
//
// Threads: any. The record has its own lock and holds it while it calls its Surroundings, so these must not call back.
#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <optional>

#include "base/status.h"
#include "collectives/control/verdict.h"

namespace annulus {

// The latest failure, as reported by annulus_comm_last_error.
struct ErrorRecord {
  Verdict verdict;
  bool failed = false;
};

class FailureRecord {
 public:
  // What the record needs from the rest of its communicator.
  class Surroundings {
   public:
    virtual ~Surroundings() = default;
    // Verdict that the ranks received; null while there is none.
    virtual const Verdict* Told() = 0;
    // Call that was ended here by a verdict about no call in particular (a rank died); sequence 0 when there was none.
    virtual Call Interrupted() = 0;
    // Announces the verdict to users as it is recorded. Called once.
    virtual void Announce(const Verdict& verdict) = 0;
    // Writes the trace now, since the process may not exit normally.
    virtual void KeepTrace() = 0;
  };

  // `surroundings` outlives the record.
  FailureRecord(int rank, Surroundings* surroundings) : rank_(rank), surroundings_(surroundings), refusals_(1) {}

  // Whether a verdict is recorded. Takes no lock.
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // Recorded verdict, which never changes. Valid only once ended().
  const Verdict& verdict() const { return fatal_.verdict; }

  // Records the verdict that the ranks received, if any, and then writes the trace. Returns ended(), and sets *code if
  // so.
  bool CheckEnded(Code* code);

  // Records the verdict that ends the communicator, unless one is recorded already.
  void End(const Verdict& verdict);

  // Records a refused call, for which nothing was sent.
  void Refuse(const Status& status);

  // Returns the latest failure. The returned record never changes. It is kept while the communicator lives or, when it
  // is only a refused call, until kKeptRefusals more calls were refused.
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
  std::list<ErrorRecord> refusals_;  // The newest is last; never empty.
  std::atomic<bool> ended_{false};
};

}  // namespace annulus
