// FakeGraphs: what the stand-in has of captures, graphs, executable graphs and user objects.
//
// A stream that is captured has a place in a graph: the nodes that its next one comes after. An event that is recorded
// there takes the place along, and a stream that waits for it joins the capture. Each node of an executable graph has a
// stream of its own, so that a launch is work in streams, with what comes after what.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "cuda_kernels/driver/driver_types.h"
#include "tests/cuda/fake_driver/fake_memory.h"
#include "tests/cuda/fake_driver/fake_streams.h"

namespace annulus::cuda {

struct FakeWork {
  int stream;
  std::vector<MemoryRange> read;
  std::vector<MemoryRange> written;
  std::function<bool()> run;  // False: it accesses what it may not.
  // Done words and counters, which it changes too. Others may look at them meanwhile.
  std::vector<MemoryRange> marks = {};
  std::function<bool()> may_run = nullptr;  // A gate; null: it is none.
  std::function<void()> host = nullptr;     // A function of the host, in place of `run`; called without any lock.
  uint64_t number = 0;                      // In its stream.
  FakeStreams::Clock after = {};            // What comes before it.
};

class FakeGraphs {
 public:
  using Nodes = std::set<int>;

  // Captures. Those of default streams but a thread's are refused.
  Result Begin(int stream, CaptureMode mode);
  // Ends the capture that began in `stream`. kStreamCaptureUnjoined, kStreamCaptureInvalidated: there is no graph.
  Result End(int stream, int* graph);
  // kActive or kInvalidated with the capture's number and its graph; kNone.
  CaptureStatus StatusOf(int stream, uint64_t* id, int* graph) const;
  bool IsCaptured(int stream) const { return captured_.count(stream) == 1; }
  // Has the capture of a stream, or all that this thread's calls disturb, end without a graph.
  void Invalidate(int stream);
  // Whether an unsafe call of this thread, in that mode, disturbs a capture, which it invalidates.
  bool Disturb(CaptureMode mode);
  // Work of a captured stream.
  Result Add(FakeWork work);
  void Record(int event, int stream);
  void ForgetRecord(int event) { events_.erase(event); }
  // Whether the event was recorded in a capture that is under way; then the stream joins it.
  bool Wait(int stream, int event, Result* result);

  // Graphs.
  Result Instantiate(int graph, FakeStreams* streams, int* exec);
  // What a launch in `stream` does, in an order in which each comes after what it must. Each is given to `submit`.
  Result Launch(int exec, int stream, FakeStreams* streams, const std::function<Result(FakeWork)>& submit);
  Result DestroyGraph(int graph);
  // It keeps its objects until `is_busy` of its stream is false, which Collect asks.
  Result DestroyExec(int exec);

  // User objects.
  int NewObject(std::function<void()> destroy, unsigned references);
  Result ReleaseObject(int object, unsigned references);
  Result Retain(int graph, int object, unsigned references, bool moves);
  // Destructors that are due. The streams of what is collected go.
  std::vector<std::function<void()>> Collect(const std::function<bool(int stream)>& is_busy, FakeStreams* streams);
  bool HasToCollect() const { return !dead_.empty() || !leaving_.empty(); }

  int graphs() const { return static_cast<int>(graphs_.size() + execs_.size()); }
  int objects() const { return static_cast<int>(objects_.size()); }

 private:
  struct Node {
    FakeWork work;
    Nodes after;
  };
  struct Graph {
    std::vector<Node> nodes;
    std::vector<int> objects;
  };
  struct Exec {
    Graph graph;
    std::vector<int> streams;  // One for each node.
    int stream = 0;            // Comes after all of a launch, and before all of the next.
  };
  struct Capture {
    int origin = 0;
    int graph = 0;
    CaptureMode mode = CaptureMode::kGlobal;
    std::thread::id thread;
    bool is_invalid = false;
  };
  struct Place {
    uint64_t capture = 0;
    Nodes after;
  };
  struct Object {
    std::function<void()> destroy;
    unsigned references = 0;
  };

  void Drop(const std::vector<int>& objects);
  bool HasAllNodes(const Graph& graph, const Nodes& ends) const;

  std::map<uint64_t, Capture> captures_;
  std::map<int, Place> captured_;  // By stream.
  std::map<int, Place> events_;
  std::map<int, Graph> graphs_;
  std::map<int, Exec> execs_;
  std::vector<Exec> leaving_;  // Destroyed while a launch is under way, perhaps.
  std::map<int, Object> objects_;
  std::vector<std::function<void()>> dead_;
  uint64_t last_capture_ = 0;
  int last_ = 0;
};

}  // namespace annulus::cuda
