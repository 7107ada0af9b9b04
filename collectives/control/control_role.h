// ControlRole: what a control thread does with its connections. Rank 0 plays the judge, every other rank a member.
//
// Threads: the control thread only.
#pragma once

#include <asio/io_context.hpp>
#include <functional>

#include "collectives/control/control_activity.h"
#include "collectives/control/control_connections.h"
#include "collectives/control/verdict.h"

namespace annulus {

// The objects a role uses; they outlive it.
struct ControlRoleConfig {
  int rank = 0;
  int nranks = 1;
  asio::io_context* context = nullptr;
  const ActivityRecorder* activity = nullptr;
  // Sets this rank's verdict. The first one counts; later ones are news of ranks that are lost.
  std::function<void(const Verdict&)> conclude;
  // Rank 0 died, so there will be no more news. May be null.
  std::function<void()> judge_lost;
};

class ControlRole {
 public:
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
};

// Control messages are small: reports and verdicts with their texts are the largest.
constexpr size_t kMostControlBytes = 4096;

void WriteActivity(const Activity& activity, ByteWriter* out);
bool ReadActivity(ByteReader* in, Activity* activity);

}  // namespace annulus
