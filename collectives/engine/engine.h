// Engine: one collective at a time, as a non-blocking state machine over links and a device.
//
// The same code serves every collective, transport and device; whoever owns the engine decides when to call Progress:
// the calling thread, the communicator's progress thread, or a simulation in virtual time.
//
// Threads: one at a time. Start and Progress allocate nothing after the first collective.
#pragma once

#include <memory>
#include <vector>

#include "collectives/algorithms/exchange.h"
#include "collectives/algorithms/one_hop/express.h"
#include "collectives/algorithms/pipeline.h"
#include "collectives/choice/plan.h"

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

  // Whether `call` is the latest one again but for its number, and that one went the express way: then StartAgain may
  // begin it, which plans nothing anew.
  bool Repeats(const Call& call) const {
    const Call& last = work_.call;
    return is_express_ && call.count == last.count && call.kind == last.kind && call.type == last.type &&
           call.op == last.op && call.root == last.root;
  }
  void StartAgain(uint64_t sequence, const void* input, void* output);
  // Does what was begun by StartAgain as far as it goes at once. What fails here fails in Progress too.
  bool FinishesAtOnce();
  // As Express::set_polls.
  void set_express_polls(int polls) { express_.set_polls(polls); }

  // Moves everything that can move now, without blocking. Sets *moved when something changed.
  // Errors: kMismatch, kProtocol, kPeerLost, ... with the peer's rank. They stick: do not call again.
  Status Progress(bool* moved);

  // Outputs are written past the caches from so many bytes of input and output on.
  void set_stream_bytes(size_t bytes) { stream_bytes_ = bytes; }

  bool done() const { return pipelines_left_ == 0; }

  // The rank that a collective in which nothing moves waits for first, -1 for none in particular.
  int AwaitedPeer() const;

  // From any thread; set_choice is called before the communicator is the user's, on all ranks alike.
  const AlgorithmChoice& choice() const { return choice_; }
  void set_choice(const AlgorithmChoice& choice) {
    choice_ = choice;
    is_express_ = false;  // What was planned by the old one is not repeated.
  }

  // From any thread: it does not change.
  size_t MemoryBytes() const;

  // Asks that the reactor wakes when Progress may have something to do. Returns false when it has now: do not sleep.
  bool Arm();

 private:
  bool StreamsOutput(const Call& call, const Buffers& buffers, Algorithm algorithm) const;
  bool WaitsFor(const Endpoint* endpoint) const;
  bool WaitsForDevice() const;
  Status AdvanceAll(bool* moved);
  Status ProgressLinks(bool* moved);
  Status ProgressExpress(bool* moved);
  void MakeExchanges();
  Exchange* ExchangeOf(Algorithm algorithm) const;
  bool ExpressIsDone();
  void StartPipelines(const ScheduleParams& params);
  ScheduleParams Plan(const Call& call, const Buffers& buffers);
  void FillParts(const Call& call, const Buffers& buffers);

  const int rank_;
  const int nranks_;
  const PlanSettings settings_;
  AlgorithmChoice choice_;
  const Links* const links_;
  Monitor* const monitor_;
  Work work_;
  size_t stream_bytes_ = SIZE_MAX;
  std::vector<Pipeline> pipelines_;         // By channel; where there is a grid, one more, for its outer level.
  std::unique_ptr<Exchange> log_exchange_;  // Those that plans may ask for.
  std::unique_ptr<Exchange> log_gather_;
  std::unique_ptr<Exchange> tree_;
  Exchange* exchange_ = nullptr;                                // Of the current collective, in place of pipelines.
  std::vector<Endpoint*> ring_endpoints_;                       // Of all channels, each once.
  std::vector<Endpoint*> mesh_endpoints_;                       // To every peer, on channel 0.
  std::vector<Endpoint*> level_endpoints_;                      // Of both levels of the grid, each once.
  std::vector<Endpoint*> root_endpoint_;                        // To the root of the current collective.
  const std::vector<Endpoint*>* endpoints_ = &ring_endpoints_;  // Those of the current collective.
  int pipelines_left_ = 0;
  Express express_;
  bool is_express_ = false;        // In place of the pipelines.
  std::vector<Part> input_parts_;  // Of the current collective, by rank, when its kind has parts.
  std::vector<Part> output_parts_;
  std::vector<uint64_t> round_ends_;
};

// What exchanges hold, at most.
size_t ExchangesBytes(int nranks, const PlanSettings& settings);

// Whether every rank has a link to every other.
bool HasMesh(int nranks, const PlanSettings& settings);

// The neighbours of a rank on both levels of the grid; none without one.
std::vector<int> LevelPeers(int rank, const HostGrid& grid);

// The links of a communicator: both ring neighbours on every channel, those of log steps, of the tree and of both
// levels of the grid on channel 0 and, when there is a mesh, every peer on channel 0 and, for messages, on channel
// settings.channels. Each (peer, channel) once.
struct NeededLink {
  int peer;
  int channel;
};
std::vector<NeededLink> LinksNeeded(int rank, int nranks, const PlanSettings& settings);

}  // namespace annulus
