// Engine: one collective at a time, as a non-blocking state machine over links and memory domains.
//
// The engine plans a call and hands it to the runner of the algorithm named in the plan. The same code serves every
// collective, transport and memory domain. The owner of the engine decides when to call Progress: the calling thread,
// the communicator's progress thread, or a simulation in virtual time.
//
// Threads: one at a time. Start and Progress allocate nothing after the first collective.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "collectives/algorithms/runner.h"
#include "collectives/choice/plan.h"
#include "collectives/engine/call_parts.h"
#include "collectives/engine/recent_calls.h"
#include "collectives/engine/staged_copies.h"

namespace annulus {

struct Buffers {
  ConstBuffer input;
  Buffer output;
  size_t count = 0;  // Elements of the own part, where it is the only one in its buffer.
  Layout input_layout;
  Layout output_layout;
  const Segments* segments = nullptr;  // Tensors of a group, in place of input and output; borrowed like them.
  CustomReduction custom;              // The reduction of a call.op that the user created.
  Staging staging = {};                // Copies around the call, if input and output are staging memory.
  const StreamFold* fold = nullptr;    // As in Work; its call may be done when its last step is left to the device.
};

class Engine {
 public:
  // `links` and `monitor` outlive the engine, and so does `staging`, where it allocates slots of its own (null: plain
  // host memory). `links` holds what the schedules of that topology's ranks need.
  Engine(int rank, const PlanSettings& settings, const Topology& topology, const Links* links, Monitor* monitor,
         SlotMemory* staging = nullptr);

  // Begins `call`; the previous one must be done. The buffers are borrowed until done() or an error; after an error,
  // until the links are closed and the domains drained. Their layouts are borrowed until Start returns. Of input and
  // output, one at most may lie in a device's memory, or both in that of the same.
  // Units: call.count in elements of call.type.
  void Start(const Call& call, const Buffers& buffers);

  // Whether a call equals one of the latest few except for its number, and its runner can repeat it. If so, that one is
  // the latest call from now on, which StartAgain may begin without planning. While a call is under way only that one
  // is looked at. What its kind does not have is 0. Values in place of a Call: fields that have just been put together
  // are compared as one wider word, which would wait for every store before it.
  bool Repeats(CollectiveKind kind, DataType type, ReduceOp op, int root, uint64_t count) {
    const auto is_like = [=](const RecentCall& recent) {
      const Call& last = recent.work.call;
      return count == last.count && kind == last.kind && type == last.type && op == last.op && root == last.root;
    };
    return MakeLatest(is_like);
  }
  // The same for a call whose parts may differ. Without a root, that of the call on the wire tells of its counts.
  bool RepeatsParts(CollectiveKind kind, DataType type, ReduceOp op, int root, size_t own_count, const Layout& input,
                    const Layout& output) {
    const auto is_like = [&](const RecentCall& recent) {
      const Call& last = recent.work.call;
      return kind == last.kind && type == last.type && op == last.op && (!HasRoot(kind) || root == last.root) &&
             recent.parts.AreOf(rank_, kind, root, own_count, input, output);
    };
    return MakeLatest(is_like);
  }
  // The same for the call of a plan; no call has the plan 0.
  bool RepeatsPlan(uint64_t plan) {
    return MakeLatest([plan](const RecentCall& recent) { return recent.plan == plan; });
  }
  // Of the latest call. A call that Repeats it has this plan.
  uint64_t plan() const { return recent_.latest().plan; }
  // The latest call, with its number.
  const Call& latest() const { return recent_.latest().work.call; }
  // The buffers lie in host memory, as did those of the latest call.
  void StartAgain(uint64_t sequence, const void* input, void* output);
  // Sends what StartAgain began as far as that goes at once, and may look for what comes. After kNothing FinishesAtOnce
  // does the rest. An error here is also returned by Progress.
  Awaits SendFirst(bool looks) { return recent_.latest().repeatable->SendFirst(looks); }
  // Advances what StartAgain began as far as it goes at once. Returns whether it is done. An error here is also
  // returned by Progress.
  bool FinishesAtOnce();

  // This rank shares its core with those that it waits for. Then repeated calls look only once for short slices before
  // they do anything else, and nothing is lent: whoever waits for a reader keeps it from reading.
  void ShareCore() {
    host_.short_polls = 1;
    host_.lends = false;
  }

  // Moves everything that can move now, without blocking. Sets *moved when something changed.
  // Errors: kMismatch, kProtocol, kPeerLost, ... with the peer's rank. They stick: do not call again.
  Status Progress(bool* moved);

  // Outputs are written past the caches when input and output together have at least this many bytes.
  void set_stream_bytes(size_t bytes) { host_.stream_bytes = bytes; }

  bool done() const { return phase_ == Phase::kDone; }

  // Rank that a collective waits for first when nothing moves; -1 for none in particular.
  int AwaitedPeer() const { return IsCopying() ? -1 : current_->AwaitedPeer(); }

  // From any thread. set_choice is called before the user has the communicator, on all ranks alike.
  const AlgorithmChoice& choice() const { return choice_; }
  void set_choice(const AlgorithmChoice& choice) {
    choice_ = choice;
    recent_.Forget();  // A plan by the old choice must not be repeated.
  }

  // From any thread: the value does not change.
  size_t MemoryBytes() const { return MemoryBytes(job()); }
  static size_t MemoryBytes(const AlgorithmJob& job);

  // Asks the reactor to wake when a link has something to do for Progress. Returns false if one has something now: then
  // do not sleep. Devices are armed by DomainQueues.
  bool Arm() { return IsCopying() || current_->Arm(); }
  // When to look again, after Arm, at what wakes nobody.
  Deadline look_at() const { return IsCopying() ? kNoDeadline : current_->look_at(); }

 private:
  // About 100 ns, the time a cache line takes between distant cores.
  static constexpr int kShortPolls = 64;

  // Where a collective is: kLoads and kStores only if it is staged.
  enum class Phase : uint8_t { kDone, kLoads, kRuns, kStores };

  // Limits that depend on this host.
  struct HostLimits {
    size_t stream_bytes = SIZE_MAX;  // Outputs of so many bytes are written past the caches.
    int short_polls = kShortPolls;   // Polls of a short slice before the engine returns.
    bool lends = true;               // Slices that are only copied (Work::lends).
  };

  // The copies around a staged collective.
  struct Staged {
    Staging staging;
    StagedCopies copies;
  };

  bool IsCopying() const { return phase_ == Phase::kLoads || phase_ == Phase::kStores; }
  // Moves the copies on, and then begins what follows them.
  Status Copy(bool* moved);
  void MakeRunners(SlotMemory* staging);
  Runner* RunnerOf(RecentCall* call) const;
  template <class IsLike>
  bool MakeLatest(IsLike is_like) {
    if (recent_.latest().repeatable != nullptr && is_like(recent_.latest())) [[likely]]
      return true;
    if (!done() || !recent_.Recall(is_like)) return false;
    current_ = recent_.latest().one_hop.get();
    staged_.staging = Staging();
    return true;
  }
  // Starts the latest call's work with the runner of its plan.
  void StartRunner();
  AlgorithmJob job() const { return {settings_, topology_}; }
  bool StreamsOutput(const Call& call, const Buffers& buffers, Algorithm algorithm) const;
  void Describe(const Call& call, const Buffers& buffers, Work* work) const;
  ScheduleParams Plan(const Call& call, const Buffers& buffers);

  int nranks() const { return topology_.nranks; }

  const int rank_;
  const PlanSettings settings_;
  const Topology topology_;
  AlgorithmChoice choice_;
  const Links* const links_;
  Monitor* const monitor_;
  RecentCalls recent_;
  HostLimits host_;
  // By Algorithm; null if unused in the job, and for one hop, which recent calls have for themselves.
  std::array<std::unique_ptr<Runner>, kAlgorithmCount> runners_;
  Runner* current_ = nullptr;  // Runner of the latest collective. Never null.
  Phase phase_ = Phase::kDone;
  Staged staged_;
};

}  // namespace annulus
