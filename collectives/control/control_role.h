// ControlRole: what a control thread does with its connections. Rank 0 plays the judge, every other rank a member.
//
// Threads: the control thread only.
#pragma once

#include <atomic>
#include <functional>

#include "base/clock.h"
#include "collectives/control/control_activity.h"
#include "collectives/control/control_connections.h"
#include "collectives/control/control_net.h"
#include "collectives/control/verdict.h"

namespace annulus {

// The objects a role uses; they outlive it.
struct ControlRoleConfig {
  int rank = 0;
  int nranks = 1;
  ControlNet* net = nullptr;
  const ActivityRecorder* activity = nullptr;
  // Sets this rank's verdict. The first one counts; later ones are news of ranks that are lost.
  std::function<void(const Verdict&)> conclude;
  // Rank 0 died or left, so there will be no more news. May be null.
  std::function<void()> judge_lost;
  // Time at which rank 0 last gave a sign of life. May be null.
  std::atomic<Nanoseconds>* heard_at = nullptr;
  // Since a report: whether rank 0's host has long not acknowledged what was sent to it, so that the path to it is what
  // is silent. May be null.
  std::atomic<bool>* path_is_silent = nullptr;

  void Heard() const {
    if (heard_at != nullptr) heard_at->store(net->Now());
  }
};

class ControlRole {
 public:
  // How long a message may take to reach the other host over a bad path. Until then neither end concludes that the
  // other has stopped answering, and rank 0 does not leave. Longer than a rank takes to notice a silent connection and
  // to make another (control_stream.cc).
  static constexpr Nanoseconds kPathGrace = 4 * kSecond;

  virtual ~ControlRole() = default;

  // Takes over the connections and begins to listen to them.
  virtual Status Open(ControlConnections connections) = 0;
  // A collective failed on this rank.
  virtual void Report(const Status& failure, const Call& call) = 0;
  // A collective takes long on this rank.
  virtual void Doubt() = 0;
  // This rank reached a verdict alone.
  virtual void Settle(const Verdict& verdict) = 0;
  // Says goodbye. `on_gone` runs when all connections have closed, possibly at once.
  virtual void Depart(std::function<void()> on_gone) = 0;
  // Whether the goodbye, and what was said before it, may still arrive: over a connection that is made again, or over a
  // bad path.
  virtual bool AwaitsReturn() const = 0;
};

void WriteActivity(const Activity& activity, ByteWriter* out);
bool ReadActivity(ByteReader* in, Activity* activity);

}  // namespace annulus
