// GraphReplays: the calls of one communicator that are part of graphs, and the thread that has them done again when a
// launch has come to them. It sleeps in between.
//
// Calls of one graph that must have the same order on all ranks are begun in the order in which they were captured,
// whatever branches of the graph they lie in: collectives, and messages of one peer in one direction. A launch that has
// come to a call out of turn waits for those before it. Since a call depends only on what was captured before it, these
// come; unless nodes were left out of a graph. So a launch waits no longer than its calls may take: then the
// communicator ends. It ends at once where a launch comes to a call that an earlier one has not left, as when two
// executable graphs of one captured graph are under way.
//
// Threads: Start, Add and Remove one at a time; Stop from any. Config's functions are called by the thread.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/calls/call_arguments.h"
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
    Nanoseconds timeout = 0;       // How long a launch may wait for its turn.
  };
  struct Config {
    std::function<void(const Captured& captured)> replay;  // Queues the calls once more. With a lock held.
    std::function<void(const Captured& captured)> forget;  // Its graph is gone. With none.
    std::function<void(const std::string& why)> fail;      // Ends the communicator. With a lock held.
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
  struct Entry;
  struct Added;
  // Calls of one capture that are begun in this order, launch after launch.
  struct Lane {
    CollectiveKind kind = CollectiveKind::kNone;  // None: all collectives.
    int peer = 0;
    std::vector<Entry*> entries;
    size_t next = 0;  // Whose turn it is.
  };
  struct Entry {
    Captured captured;
    std::vector<Lane*> lanes;
    uint64_t taken = 0;        // Launches of which the calls were begun.
    Deadline waits_until = 0;  // Of a launch that has come and was not begun; 0: none was seen.
  };
  // One capture; references to what it has stay valid.
  struct Capture {
    uint64_t id = 0;
    std::list<Entry> entries;
    std::list<Lane> lanes;
  };
  // What the thread has seen and waits for.
  struct Watch {
    GraphBell::Rings seen;
    uint64_t begun = 0;    // Launches whose calls were begun; modulo 2^64 with those that nobody will begin.
    uint64_t ends = 0;     // Rings for graphs that are gone, as of the last look at all.
    Deadline look_at = 0;  // When to look at all that waits; at once if it has passed.
    bool is_soon = false;  // A gate has yet to close.
    bool has_failed = false;
  };

  void Thread();
  // All with mu_ held.
  // Begins what can be, and returns when to look again if nobody rings.
  Deadline BeginAll();
  // The first that a launch has come to and whose turn it is; null: there is none.
  Entry* FindNext();
  static bool IsNext(const Entry& entry);
  void Begin(Entry* entry);
  // Gives a launch that waits its deadline, and ends the communicator where it has passed.
  void LookAtWaiting();
  // Whether a launch has come too early. Ends the communicator.
  bool HasCrossed(const Entry& entry);
  void Fail(const std::string& why);
  static std::string WhyItWaits(const Entry& entry);
  // The lanes of a call, which are made if they are not there.
  static void AddToLanes(const CallArguments& call, Capture* capture, Entry* entry);
  static void AddTo(Lane* lane, Entry* entry);
  void Erase(Capture* capture, std::list<Entry>::iterator entry);
  void EraseEmpty();
  // Removes those whose graphs are gone.
  std::vector<Captured> TakeGone();

  const Config config_;
  const std::shared_ptr<GraphBell> bell_ = std::make_shared<GraphBell>();
  std::mutex start_mu_;  // For the thread, and is_stopping_.
  std::thread thread_;
  std::mutex mu_;
  bool is_stopping_ = false;
  std::atomic<bool> has_captured_{false};
  std::list<Capture> captures_;
  Watch watch_;
};

}  // namespace annulus
