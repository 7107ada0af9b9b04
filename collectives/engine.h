// Engine: one collective at a time, as a non-blocking state machine over links and a device.
//
// The same code serves every collective, transport and device; whoever owns the engine decides when to call Progress:
// the calling thread, the communicator's progress thread, or a simulation in virtual time.
//
// Threads: one at a time. Start and Progress allocate nothing after the first collective.
#pragma once

#include <vector>

#include "collectives/pipeline.h"
#include "collectives/plan.h"

namespace annulus {

class Engine {
 public:
  // `links` outlives the engine and holds what the schedules of `nranks` ranks need.
  Engine(int rank, int nranks, const PlanSettings& settings, const Links* links);

  // Begins `call`; the one before must be done. The buffers are lent until done() or an error; after an error, until
  // the links are closed. `device` is where both buffers lie. Units: call.count in elements of call.type.
  void Start(const Call& call, const void* input, void* output, Device* device);

  // Moves everything that can move now, without blocking. Sets *moved when something changed.
  // Errors: kMismatch, kProtocol, kPeerLost, ... with the peer's rank. They stick: do not call again.
  Status Progress(bool* moved);

  bool done() const { return pipelines_left_ == 0; }

  // Asks that the reactor wakes when Progress may have something to do. Returns false when it has now: do not sleep.
  bool Arm();

 private:
  bool WaitsFor(const Endpoint* endpoint) const;

  const int rank_;
  const int nranks_;
  const PlanSettings settings_;
  const Links* const links_;
  Work work_;
  std::vector<Pipeline> pipelines_;
  std::vector<Endpoint*> ring_endpoints_;                       // Of all channels, each once.
  std::vector<Endpoint*> one_hop_endpoints_;                    // To every peer.
  const std::vector<Endpoint*>* endpoints_ = &ring_endpoints_;  // Those of the current collective.
  int pipelines_left_ = 0;
};

// The links that the schedules need: both ring neighbours on every channel, and every peer on channel 0 when small
// messages go by one hop. Each (peer, channel) once.
struct NeededLink {
  int peer;
  int channel;
};
std::vector<NeededLink> LinksNeeded(int rank, int nranks, const PlanSettings& settings);

}  // namespace annulus
