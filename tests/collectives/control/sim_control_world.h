// SimControlWorld: the machines of a job in virtual time, as its control threads see them. Control roles run on its
// nets unchanged. The same seed and cuts give the same run.
//
// A process that ends closes its connections, and then nobody listens at its door.
// Threads: one.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/control/control_connections.h"
#include "collectives/control/control_net.h"
#include "tests/collectives/control/sim_control_path.h"
#include "transport/sim/sim_clock.h"

namespace annulus {

class SimControlWorld {
 public:
  SimControlWorld(uint64_t seed, int nranks, const std::vector<SimCut>& cuts);
  ~SimControlWorld();

  SimClock& clock() { return clock_; }
  ControlNet* net(int rank);
  // The connections that bootstrap would make. Once per rank.
  ControlConnections Connections(int rank);
  // Cuts the paths of these ranks, now; `how` names neither rank nor message.
  void Cut(const std::vector<int>& ranks, const SimCut& how);
  // The process is stopped until then, or until an earlier pause ends, and does everything late.
  void Pause(int rank, Nanoseconds until);
  Nanoseconds awake_at(int rank) const { return awake_at_[rank]; }
  // Runs `act` when that process runs: now, or when its pause is over.
  void WhenAwake(int rank, std::function<void()> act);
  // From now on nobody can connect to rank 0, as where a firewall refuses its door's port; connections live on.
  void RefuseDials() { refuses_dials_ = true; }
  // The process ends. Whatever used its net is gone.
  void EndProcess(int rank);
  int cuts_made() const;
  // When the first cut was made; kNoDeadline: never.
  Nanoseconds cut_at() const;

 private:
  class Net;
  friend class Net;
  struct Held {
    std::shared_ptr<SimControlLine> line;
    int side;
  };

  int Hold(std::shared_ptr<SimControlLine> line, int side);
  Held TakeHeld(int fd);

  SimClock clock_;
  bool refuses_dials_ = false;
  std::vector<Nanoseconds> awake_at_;                   // By rank.
  std::vector<std::unique_ptr<SimControlPath>> paths_;  // By the rank that is not 0.
  std::map<int, Held> held_;                            // Ends without a stream, by descriptor.
  int next_fd_;
  std::vector<std::pair<int, int>> first_fds_;  // Those of bootstrap, by rank from 1: rank 0's end and its own.
  std::vector<std::unique_ptr<Net>> nets_;      // By rank.
};

}  // namespace annulus
