// FailureRecord: the verdict that ended one communicator, if any. A refused call ends nothing and is not recorded: it
// is the Status that the call returns. A Status without a message stands for the verdict.
//
// Threads: any. The record has its own lock and holds it while it calls its Surroundings, so these must not call back.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "base/status.h"
#include "collectives/control/verdict.h"

namespace annulus {

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
  FailureRecord(int rank, Surroundings* surroundings) : rank_(rank), surroundings_(surroundings) {}

  // Whether a verdict is recorded. Takes no lock.
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // Recorded verdict, which never changes. Valid only once ended().
  const Verdict& verdict() const { return verdict_; }

  // Records the verdict that the ranks received, if any, and then writes the trace. Returns ended(), and sets *code if
  // so.
  bool CheckEnded(Code* code);

  // Records the verdict that ends the communicator, unless one is recorded already.
  void End(const Verdict& verdict);

  // Ends the communicator because this rank destroys it, which is announced to nobody.
  void Close();

 private:
  // Both with mu_ held.
  void CheckTold();
  void Record(const Verdict& verdict);

  const int rank_;
  Surroundings* const surroundings_;
  std::mutex mu_;
  Verdict verdict_;  // Constant once ended_.
  std::atomic<bool> ended_{false};
};

}  // namespace annulus
