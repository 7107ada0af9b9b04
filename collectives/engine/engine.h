// Engine: one collective at a time, as a non-blocking state machine over links and a device.
//
// The engine plans a call and hands it to the runner of the algorithm that the plan names. The same code serves every
// collective, transport and device; whoever owns the engine decides when to call Progress: the calling thread, the
// communicator's progress thread, or a simulation in virtual time.
//
// Threads: one at a time. Start and Progress allocate nothing after the first collective.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "collectives/algorithms/runner.h"
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

  // Whether `call` is the latest one again but for its number, and its runner can repeat it: then StartAgain may begin
  // it, which plans nothing anew.
  bool Repeats(const Call& call) const {
    const Call& last = work_.call;
    return repeatable_ != nullptr && call.count == last.count && call.kind == last.kind && call.type == last.type &&
           call.op == last.op && call.root == last.root;
  }
  void StartAgain(uint64_t sequence, const void* input, void* output);
  // Does what was begun by StartAgain as far as it goes at once. What fails here fails in Progress too.
  bool FinishesAtOnce();

  // How often calls that are repeated look for short slices before they do anything else. A rank that shares its core
  // with the one that it waits for looks but once.
  void set_short_polls(int polls) { short_polls_ = polls; }

  // Moves everything that can move now, without blocking. Sets *moved when something changed.
  // Errors: kMismatch, kProtocol, kPeerLost, ... with the peer's rank. They stick: do not call again.
  Status Progress(bool* moved);

  // Outputs are written past the caches from so many bytes of input and output on.
  void set_stream_bytes(size_t bytes) { stream_bytes_ = bytes; }

  bool done() const { return !running_; }

  // The rank that a collective in which nothing moves waits for first, -1 for none in particular.
  int AwaitedPeer() const { return current_->AwaitedPeer(); }

  // From any thread; set_choice is called before the communicator is the user's, on all ranks alike.
  const AlgorithmChoice& choice() const { return choice_; }
  void set_choice(const AlgorithmChoice& choice) {
    choice_ = choice;
    repeatable_ = nullptr;  // What was planned by the old one is not repeated.
  }

  // From any thread: it does not change.
  size_t MemoryBytes() const;

  // Asks that the reactor wakes when Progress may have something to do. Returns false when it has now: do not sleep.
  bool Arm() { return current_->Arm(); }

 private:
  // Some 100 ns, what a line takes between distant cores.
  static constexpr int kShortPolls = 64;

  void MakeRunners();
  Job job() const { return {nranks_, settings_, choice_.grid()}; }
  bool StreamsOutput(const Call& call, const Buffers& buffers, Algorithm algorithm) const;
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
  int short_polls_ = kShortPolls;
  std::array<std::unique_ptr<Runner>, kAlgorithmCount> runners_;  // By Algorithm; null where the job has no use for it.
  Runner* current_ = nullptr;                                     // Of the latest collective. Never null.
  Repeatable* repeatable_ = nullptr;                              // Of the latest collective.
  bool running_ = false;
  std::vector<Part> input_parts_;  // Of the current collective, by rank, when its kind has parts.
  std::vector<Part> output_parts_;
};

}  // namespace annulus
