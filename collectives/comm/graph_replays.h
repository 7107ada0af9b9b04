// GraphReplays: the calls of one communicator that are part of graphs, and the thread that has them done again when a
// launch has come to them. It sleeps in between.
//
// Calls of one graph that must have the same order on all ranks are begun in the order in which they were captured,
// whatever branches of the graph they lie in: collectives, and messages of one peer in one direction. A launch that has
// come to a call out of turn waits for those before it. Since a call depends only on what was captured before it, these
// come.
//
// Threads: Start, Add and Remove one at a time; Stop from any. Config::replay and forget are called by the thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"
#include "collectives/calls/request.h"
#include "collectives/reduce/graph_call.h"

namespace annulus {

class GraphReplays {
 public:
  // Calls that were captured together.
  struct Captured {
    GraphCall* call = nullptr;
    uint64_t capture = 0;
    std::vector<Request*> models;  // One for each call; never queued.
    uint64_t taken = 0;            // Launches of which the calls were begun.
  };
  struct Config {
    std::function<void(const Captured& captured)> replay;  // Queues the calls once more. With a lock held.
    std::function<void(const Captured& captured)> forget;  // Its graph is gone. With none.
  };

  explicit GraphReplays(Config config) : config_(std::move(config)) {}
  ~GraphReplays() { Stop(); }
  GraphReplays(const GraphReplays&) = delete;
  GraphReplays& operator=(const GraphReplays&) = delete;

  // What launches ring.
  const std::shared_ptr<GraphBell>& bell() const { return bell_; }

  // Starts the thread, unless it runs. Errors: kSystem.
  Status Start();
  // From here on launches are looked for. Lets std::bad_alloc through.
  void Add(Captured captured);
  // Whether there ever was one. Any thread.
  bool has_captured() const { return has_captured_.load(std::memory_order_relaxed); }
  // Undoes Add, for a capture that has failed. Returns false where its graph is gone: then `forget` is called.
  bool Remove(const GraphCall* call);
  // Ends the thread. Launches are not looked for any more.
  void Stop();

 private:
  void Thread();
  // With mu_ held.
  // The first that a launch has come to and whose turn it is; null: there is none.
  Captured* FindNext();
  bool IsNext(const Captured& captured) const;
  // Removes those whose graphs are gone.
  std::vector<Captured> TakeGone();

  const Config config_;
  const std::shared_ptr<GraphBell> bell_ = std::make_shared<GraphBell>();
  std::mutex start_mu_;  // For the thread, and is_stopping_.
  std::thread thread_;
  std::mutex mu_;
  bool is_stopping_ = false;
  std::atomic<bool> has_captured_{false};
  std::vector<Captured> captured_;  // Those of one capture in its order.
};

}  // namespace annulus
