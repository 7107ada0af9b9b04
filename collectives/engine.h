// Engine: one collective at a time, as a non-blocking state machine over links and a device.
//
// The same code serves every collective, transport and device; whoever owns the engine decides when to call Progress:
// the calling thread, the communicator's progress thread, or a simulation in virtual time.
//
// Threads: one at a time. Start and Progress allocate nothing after the first collective.
#pragma once

#include <memory>
#include <vector>

#include "collectives/express.h"
#include "collectives/log_exchange.h"
#include "collectives/pipeline.h"
#include "collectives/plan.h"

namespace annulus {

// Where the ranks' parts lie in a buffer, in elements. Null counts: all parts have the call's count. Null offsets: one
// part follows the other.
struct Layout {
  const size_t* counts = nullptr;
  const size_t* offsets = nullptr;
};

struct Buffers {
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // Of the own part, where it is the only one in its buffer.
  Layout input_layout;
  Layout output_layout;
  const Segments* segments = nullptr;  // Of a group, in place of input and output; lent like them.
  CustomReduction custom;              // Of a call.op that the user created.
};

class Engine {
 public:
  // `links`, which holds what the schedules of `nranks` ranks need, and `monitor` outlive the engine.
  Engine(int rank, int nranks, const PlanSettings& settings, const Links* links, Monitor* monitor);

  // Begins `call`; the one before must be done. The buffers are lent until done() or an error; after an error, until
  // the links are closed; their layouts until Start returns. `device` is where both buffers lie. Units: call.count in
  // elements of call.type.
  void Start(const Call& call, const Buffers& buffers, Device* device);

  // Moves everything that can move now, without blocking. Sets *moved when something changed.
  // Errors: kMismatch, kProtocol, kPeerLost, ... with the peer's rank. They stick: do not call again.
  Status Progress(bool* moved);

  bool done() const { return pipelines_left_ == 0; }

  // The rank that a collective in which nothing moves waits for first, -1 for none in particular.
  int AwaitedPeer() const;

  // From any thread: it does not change.
  size_t MemoryBytes() const;

  // Asks that the reactor wakes when Progress may have something to do. Returns false when it has now: do not sleep.
  bool Arm();

 private:
  bool WaitsFor(const Endpoint* endpoint) const;
  bool WaitsForDevice() const;
  Status AdvanceAll(bool* moved);
  Status ProgressLinks(bool* moved);
  Status ProgressExpress(bool* moved);
  ScheduleParams Plan(const Call& call, const Buffers& buffers);
  void FillParts(const Call& call, const Buffers& buffers);

  const int rank_;
  const int nranks_;
  const PlanSettings settings_;
  const Links* const links_;
  Monitor* const monitor_;
  Work work_;
  std::vector<Pipeline> pipelines_;
  std::unique_ptr<LogExchange> log_exchange_;                   // With settings.log_ranks ranks or more.
  bool in_log_steps_ = false;                                   // The current collective is its.
  std::vector<Endpoint*> ring_endpoints_;                       // Of all channels, each once.
  std::vector<Endpoint*> mesh_endpoints_;                       // To every peer, on channel 0.
  std::vector<Endpoint*> root_endpoint_;                        // To the root of the current collective.
  const std::vector<Endpoint*>* endpoints_ = &ring_endpoints_;  // Those of the current collective.
  int pipelines_left_ = 0;
  Express express_;
  bool is_express_ = false;        // In place of the pipelines.
  std::vector<Part> input_parts_;  // Of the current collective, by rank, when its kind has parts.
  std::vector<Part> output_parts_;
  std::vector<uint64_t> round_ends_;
};

// Whether every rank has a link to every other.
bool HasMesh(int nranks, const PlanSettings& settings);

// The links of a communicator: both ring neighbours on every channel, those of log steps on channel 0 and, when there
// is a mesh, every peer on channel 0 and, for messages, on channel settings.channels. Each (peer, channel) once.
struct NeededLink {
  int peer;
  int channel;
};
std::vector<NeededLink> LinksNeeded(int rank, int nranks, const PlanSettings& settings);

}  // namespace annulus
