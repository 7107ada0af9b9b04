// Messages: point-to-point messages between ranks.
//
// Messages from one rank to another arrive in the order in which they were sent, and match the receives in the order in
// which those were posted. Messages with different peers, and in different directions, are independent. They are also
// independent of collectives: messages have links of their own.
//
// Threads: Post from any; the rest from one thread at a time, the one that drives the communicator.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "collectives/algorithms/message/message.h"
#include "collectives/choice/plan.h"
#include "collectives/reduce/stream_call.h"

namespace annulus {

struct Message {
  bool sends = false;
  int peer = 0;
  ConstBuffer input;
  Buffer output;
  size_t count = 0;
  DataType type = DataType::kFloat32;
  void* cookie = nullptr;              // For MessagesConfig::done.
  Nanoseconds timeout = 0;             // 0: that of the config.
  uint16_t label = 0;                  // In the timeline (Trace::LabelOf).
  const StreamCall* stream = nullptr;  // Begins when this is ready; null: at once.

  bool IsReady() const { return stream == nullptr || stream->IsReady(); }
};

struct MessagesConfig {
  int rank = 0;
  int nranks = 1;
  PlanSettings plan;
  const Links* links = nullptr;  // Outlives the object, as do the queues of buffers and the monitor.
  Monitor* monitor = nullptr;
  Nanoseconds timeout = 0;  // Limit for each message, from the end of those before it in its route.
  // Called when a message has been sent or received; by the driving thread, from within Progress.
  std::function<void(void* cookie)> done;
};

class Messages {
 public:
  explicit Messages(MessagesConfig config);

  // Makes room for messages that are posted next. Lets std::bad_alloc through.
  void Reserve(size_t messages);
  // Gives the room of one back.
  void Unreserve();
  // Queues one message for which there is room. Its buffer is borrowed until it is done or, after a failure, until the
  // links are closed.
  void Post(const Message& message);

  // Whether there is anything to drive.
  bool busy() const { return !active_.empty() || has_inbox_.load(std::memory_order_acquire); }

  // Moves everything that can move now, without blocking. Sets *moved when something changed. An error concerns the
  // whole communicator, and sticks.
  Status Progress(bool* moved);

  // Short cut in place of Post, for a message in host memory of up to Limits::short_bytes over a link with a short
  // path: sends or receives it if that is possible at once. It looks `polls` times, or less often, for one that is to
  // be received. Returns kBegun only for messages with a cookie; `done` then follows. It is not called for kDone. kNo:
  // nothing has happened, and Post finds out why. Nothing allocates.
  AtOnce MoveAtOnce(const Message& message, int polls);
  // The same for the message with that cookie, if it was posted and nothing has been done about it yet.
  AtOnce MovePostedAtOnce(const void* cookie, int polls);
  // As Reserve, where that needs no memory, for a message whose route has been used before. Returns false, and does
  // nothing, otherwise.
  bool ReserveAgain(const Message& message);
  // As MoveAtOnce or, where that does nothing, Post; only Post unless it `moves`. `has_room`: there is room for the
  // message, which is used or given back; otherwise nothing is done unless ReserveAgain would succeed.
  AtOnce MoveOrPost(const Message& message, int polls, bool moves, bool has_room);

  // As in Engine.
  int AwaitedPeer() const;
  bool Arm();

  // When to look again, though nothing wakes the reactor: a message waits for its stream. After each Arm; kNoDeadline
  // when there is none.
  Deadline look_at() const { return look_at_; }

  // Memory of the routes used so far, in bytes. From any thread.
  size_t MemoryBytes() const { return route_bytes_.load(std::memory_order_relaxed); }

  // Earliest deadline of the current messages; kNoDeadline when there are none.
  Deadline deadline() const;
  // Returns the error for a message whose deadline lies before `now`, OK if there is none.
  Status Late(Nanoseconds now);

  // Message that the latest error was about; sequence 0 when there was none.
  const Call& failed() const { return failed_; }

 private:
  // One direction of the messages with one peer.
  struct Route {
    int peer = 0;
    bool sends = false;
    std::deque<Message> queue;  // The first one is in progress.
    uint64_t number = 0;        // Number of the first message, counted from 1.
    Deadline deadline = kNoDeadline;
    Nanoseconds begin = 0;    // Time at which the current first message began.
    bool is_waiting = false;  // The first message waits for its stream.
    Work work;
    std::unique_ptr<MessageRunner> runner;
  };

  Route* RouteOf(int peer, bool sends);
  // With inbox_mu_ held, as the next two.
  bool HasRoomAgain(const Message& message) const;
  // Route of a message that is to move at once, if no message in it or in [inbox_.begin(), end) is before it; else
  // null.
  Route* IdleRouteOf(const Message& message, std::vector<Message>::const_iterator end);
  AtOnce MoveAtOnce(Route* route, const Message& message, int polls);
  AtOnce SendAtOnce(Route* route, const Message& message, const Call& call, size_t bytes);
  void TakeInbox();
  // Begins the first message, or lets it wait for its stream.
  void BeginNext(Route* route);
  void Begin(Route* route);
  void BeginWork(Route* route);
  Status Advance(Route* route, bool* moved);
  void TraceMessage(const Route& route) const;
  void Blame(const Route& route);

  const MessagesConfig config_;
  std::vector<std::unique_ptr<Route>> routes_;  // By peer and direction; created on first use.
  std::vector<Route*> active_;
  Call failed_;
  Deadline look_at_ = kNoDeadline;
  Nanoseconds pause_ = 0;  // Between looks at streams.
  std::atomic<size_t> route_bytes_{0};
  std::atomic<bool> has_inbox_{false};
  std::mutex inbox_mu_;
  std::vector<Message> inbox_;  // Has room for `reserved_` more.
  size_t reserved_ = 0;         // Messages that will be posted.
};

}  // namespace annulus
