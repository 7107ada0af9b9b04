// MessagesConfig: what Messages and its parts are made from, and what the parts share.
//
// Threads: the config is constant. What is shared belongs to the thread that drives the communicator, but for
// held_bytes.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "base/clock.h"
#include "collectives/algorithms/message/message.h"
#include "collectives/choice/plan.h"
#include "collectives/core/links.h"
#include "collectives/engine/queued_message.h"
#include "collectives/observe/monitor.h"

namespace annulus {

// Goes with the error for what passed its deadline beside a message that nobody asked for and that could not be held.
inline constexpr const char* kNoRoom =
    "; messages that no receive asks for take up all the room that there is for them";

struct MessagesConfig {
  int rank = 0;
  int nranks = 1;
  PlanSettings plan;
  const Links* links = nullptr;  // Outlives the object, as do the queues of buffers and the monitor.
  Monitor* monitor = nullptr;
  // Limit for each message, from the end of those before it of the same pair, direction and tag.
  Nanoseconds timeout = 0;
  // Posted messages are kept by somebody else until they are taken on. A message's buffer is borrowed until it is done
  // or, after a failure, until the links are closed.
  const std::atomic<bool>* has_posted = nullptr;       // Whether there are any. Outlives the object.
  std::function<bool(Message* message)> first_posted;  // Stores the first one; false if there is none.
  std::function<void()> accept_first;                  // Takes the first one on, so that the next one is the first.
  // Called when a message has been sent to, or received from, `peer` with that tag; by the driving thread, from within
  // Progress.
  std::function<void(void* cookie, int peer, int32_t tag)> done;
};

struct MessagesShared {
  // Receives from any rank, in the order in which they were posted: those whose stream has not come to them, or that
  // have not been compared with what is held; and those that wait for a message.
  MessageList any_posted;
  MessageList any_waiting;
  uint64_t order = 0;  // Order of the latest receive.
  MessagePool pool;
  // Bytes of messages that are held for receives to come; and of those, what is beyond the share of each peer. The
  // first is read by any thread.
  std::atomic<size_t> held_bytes{0};
  size_t held_together = 0;
};

// Receives for messages that the peer has offered: those of which it is to be told, and those for which it sends data.
struct OffersTaken {
  MessageList untold;
  MessageList told;

  bool empty() const { return untold.empty() && told.empty(); }
};

// What both directions of the messages with one peer use. All outlives them.
struct MessageContext {
  int peer = 0;
  const MessagesConfig* config = nullptr;
  MessagesShared* shared = nullptr;
  OffersTaken* offers_taken = nullptr;
  SliceNotes* notes = nullptr;  // Go with the slices: grants.
  Endpoint* endpoint = nullptr;

  const PlanSettings& plan() const { return config->plan; }
};

// Adds the end of a message to the timeline, if there is one.
void TraceMessage(const MessageContext& context, const QueuedMessage& ended);

// Parameters of the schedule of a message.
ScheduleParams ParamsOf(const MessageContext& context, const Message& message, size_t slice_bytes);

// What the work of all messages has in common.
Work CommonWork(const MessageContext& context);

// Makes it the work of one of them.
inline void SetMessage(const Message& message, const Call& call, Work* work) {
  work->call = call;
  work->input = message.input;
  work->output = message.output;
  work->type = message.type;
  work->element_bytes = TypeBytes(message.type);
}

// The error for a peer that breaks the protocol of messages.
Status BrokenProtocol(int peer, const std::string& what);

}  // namespace annulus
