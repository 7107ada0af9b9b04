// Meeting: how one rank gets to know the other ranks of its communicator. It introduces itself at the rendezvous and
// learns who the others are, what they have and how to reach them. What only matters until then ends with this object.
//
// Threads: one at a time.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/control/control_connections.h"
#include "collectives/core/options.h"
#include "collectives/core/plan_settings.h"
#include "collectives/membership/bootstrap.h"
#include "collectives/membership/membership.h"
#include "collectives/membership/peer_info.h"

namespace annulus {

class Meeting {
 public:
  // If set, called regularly while the ranks meet; if it fails, the meeting ends.
  using GiveUp = std::function<Status()>;

  // The options outlive this object. The ranks have not met; `plan` is that of this rank.
  Meeting(const Options& options, const Membership& ranks, const PlanSettings& plan);

  // Sets where this rank can be reached: by transport, as in Member.
  void SetAddresses(std::vector<std::string> addresses, std::vector<std::string> reasons);

  // Whether this rank has memory domains beside host memory.
  void SetHasDevices(bool has_devices) { own_.member.has_devices = has_devices; }

  // Meets the others: exchanges what ranks say of themselves. Calls `met` as Bootstrap. Errors: those of Bootstrap.
  Status Join(Deadline deadline, const GiveUp& give_up, const std::function<void()>& met);

  // The communicator's random number, the same on all ranks; after Join.
  uint64_t job() const { return met_.job_id; }
  // The connections between rank 0 and the others; after Join, once.
  ControlConnections TakeConnections() { return std::move(met_.connections); }

  // What Join has brought: the membership with the data of all its members. Errors: kProtocol and kMismatch naming the
  // rank whose data is broken or whose settings differ.
  Status Conclude(TransportList transports, Membership* membership) const;

 private:
  // Socket that has reserved the rendezvous port since annulus-run started the job; -1: none.
  int ReservedListener(Deadline deadline) const;

  const Options& options_;
  const Membership ranks_;  // Those that meet.
  PeerInfo own_;            // What this rank says of itself.
  BootstrapResult met_;     // What the others have said.
};

}  // namespace annulus
