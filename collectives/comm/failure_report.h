// FailureReport: connects a communicator's failure record with the control thread, the log, the trace and the board
// that annulus-run watches.
//
// Threads: any.
#pragma once

#include "collectives/calls/call_queue.h"
#include "collectives/comm/failure_record.h"
#include "collectives/comm/setup.h"

namespace annulus {

class FailureReport final : public FailureRecord::Surroundings {
 public:
  // Both outlive the object.
  FailureReport(Setup* setup, const CallQueue* queue) : setup_(setup), queue_(queue) {}

  const Verdict* Told() override;
  Call Interrupted() override { return queue_->Current(); }
  void Announce(const Verdict& verdict) override;
  void KeepTrace() override;

 private:
  Setup* const setup_;
  const CallQueue* const queue_;
};

}  // namespace annulus
