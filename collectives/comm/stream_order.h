// StreamOrder: the stream-ordered calls of one communicator, between their arguments and the device: what lies on a
// device is replaced by staging memory, so that the ranks do a call on host memory; what lies in host memory stays
// where it is, since the stream waits at a gate while the ranks use it.
//
// Large collectives may be done in memory of the device that the ranks share instead (algorithms/shared_fold), once
// they have agreed, which they do in allreduces, reduce-scatters and allgathers. A group all of whose calls may be is
// one program: a fold for each call, or for the allreduces that are added together.
//
// Threads: OpenAll, MemoryBytes and GpuBytes from any; Call while its thread has the lock.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"
#include "collectives/algorithms/shared_fold/fold_agreement.h"
#include "collectives/algorithms/shared_fold/fold_program.h"
#include "collectives/calls/call_arguments.h"
#include "collectives/calls/request.h"
#include "collectives/calls/staged_buffers.h"
#include "collectives/comm/graph_replays.h"
#include "collectives/reduce/graph_call.h"
#include "collectives/reduce/memory_domains.h"
#include "collectives/reduce/stream_call.h"

namespace annulus {

class StreamOrder {
 public:
  StreamOrder(int rank, int nranks) : rank_(rank), nranks_(nranks), buffers_(rank, nranks) {}
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // Which calls may be folds in shared memory. The same on all ranks but for `can`.
  struct Folds {
    size_t memory_bytes = 0;  // A device's memory for each rank; less than 64 KiB: there are none.
    bool can = false;         // Whether this rank may take part.
    bool exchanges = false;   // Whether gatherv, scatterv and alltoallv are folds too.
    std::function<bool(const CallArguments& call)> may_be;
  };

  // Before anything else: takes the first of `domains` that has streams; null or none: calls with streams are refused.
  // They take up to `most_bytes` of pinned memory. `replays`: how calls in graphs are done.
  // `lost`: as StreamCalls::OnLost.
  void Open(const MemoryDomains* domains, size_t most_bytes, Folds folds, GraphReplays::Config replays,
            std::function<void(const std::string& why)> lost);
  // Null: no device has streams.
  GraphReplays* replays() { return replays_.get(); }
  // Launches of graphs do nothing from here on, and `lost` is not called. Before what these need goes.
  void StopReplays() {
    if (replays_ != nullptr) replays_->Stop();
    if (calls_ != nullptr) calls_->OnLost(nullptr);
  }
  // As StreamCalls.
  void Recycle(GraphCall* call) { calls_->Recycle(call); }

  // Keeps the order in which calls enter their streams that in which they are queued; otherwise a call might wait in
  // the queue for one behind it. Held while calls are submitted of which some have a stream; else nothing is locked.
  // Whoever drives the communicator never waits for it.
  std::unique_lock<std::mutex> Lock(std::span<const CallArguments> calls);

  // Calls that are submitted together, until they are queued.
  class Call {
   public:
    explicit Call(StreamOrder* order) : order_(order) {}
    // Gives the place back unless it was enqueued.
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // Takes a place for `calls`, which are complete and valid, and has them use staging memory; in a graph, where their
    // stream is captured. For that a driver may pin memory, and wait for streams: others have the lock meanwhile. Does
    // nothing without a stream. `may_do_nothing`: outputs keep their content where the calls end without having written
    // them. Waits up to `until`. Errors: kInvalidArgument, where their streams differ; as StreamCalls::Acquire.
    Status Stage(std::span<CallArguments> calls, bool may_do_nothing, Deadline until);
    // Puts the calls into their stream, and names their place in the requests `made` of them and in those that are to
    // be `queued`. Makes the program of a group, for which it takes the place. Errors: as StreamCalls::Enqueue and
    // Acquire; the place of a captured call is then to be recycled.
    Status Enqueue(std::span<Request* const> made, std::span<Request* const> queued);
    // Puts the rest of them there, once they are queued. Errors: as StreamCalls::Finish.
    Status Finish();
    // After Enqueue: where they are, as their requests name it. Null: they have no stream.
    const StreamCall* place() const { return rest_.call; }

    // After Stage: the calls are captured into a graph. Then Enqueue puts them there, for no requests.
    bool is_captured() const { return capture_.id != 0; }
    uint64_t capture() const { return capture_.id; }
    GraphCall* graph_call() const { return place_.graph_call; }

   private:
    Status StageCopies(std::span<CallArguments> calls, bool may_do_nothing, Deadline until);
    Status StageInGraph(std::span<CallArguments> calls);
    Status StageProgram(CallArguments* call, Deadline until);
    Status StageGroup(std::span<Request* const> made, std::span<Request* const> queued);
    // Names the folds of requests `of`, which are queued.
    void NameFolds(std::span<Request* const> of);
    // What the ranks have to do before calls can be folds.
    void DoTask();

    StreamOrder* const order_;
    void* stream_ = nullptr;
    StreamCapture capture_;
    StreamCalls::Place place_;      // Until it is enqueued.
    StreamCalls::Place rest_;       // Of which a part may still have to be enqueued.
    bool has_folds_ = false;        // Some of the calls are folds, or one in which the ranks may agree.
    bool is_group_ = false;         // The folds are those of a group.
    Deadline until_ = kNoDeadline;  // For the place of a group.
  };

  // Opens all gates, those of later calls too.
  void OpenAll() {
    if (calls_ == nullptr) return;
    if (agreement_ != nullptr) agreement_->End();
    calls_->OpenAll();
  }
  size_t MemoryBytes() const { return calls_ != nullptr ? calls_->MemoryBytes() : 0; }
  // Memory of a GPU that folds work in. Any thread.
  size_t GpuBytes() const { return gpu_bytes_.load(std::memory_order_relaxed); }

 private:
  // Those of one place.
  struct PlaceFolds {
    const StreamCall* call = nullptr;
    std::vector<std::unique_ptr<StreamFold>> of;
  };

  // Calls whose program is made.
  struct Making {
    std::vector<FoldShape> shapes;
    std::vector<FoldCall> calls;
    std::vector<StreamFold*> folds;       // Of the calls.
    std::vector<StreamFold*> by_request;  // Null: the request has none.
  };

  // Whether they may be folds once the ranks have agreed.
  bool MayBeFolds(std::span<const CallArguments> calls) const;
  // The call in which the ranks may agree: at most one, since few may be under way. calls.size(): none.
  size_t FindCandidate(std::span<const CallArguments> calls) const;
  size_t LeastFoldBytes() const;
  // A fold of that place, by number.
  StreamFold* FoldOf(StreamCall* call, size_t number);

  const int rank_;
  const int nranks_;
  std::unique_ptr<StreamCalls> calls_;
  std::unique_ptr<GraphReplays> replays_;
  Folds fold_rules_;
  std::unique_ptr<FoldAgreement> agreement_;  // Null: no call is a fold.
  std::mutex mu_;
  // For the thread that has the lock; kept so that later calls need no memory.
  StagedBuffers buffers_;
  std::vector<StagedBuffers::Place> places_;
  Making making_;
  uint64_t candidates_ = 0;                         // Calls so far that may have been folds.
  uint64_t pieces_ = 0;                             // Pieces of the calls that were folds.
  FoldLayout layout_;                               // Once this rank reaches all others' memory.
  std::vector<std::unique_ptr<PlaceFolds>> folds_;  // One for each place that had such a call.
  std::atomic<size_t> gpu_bytes_ = 0;
};

}  // namespace annulus
