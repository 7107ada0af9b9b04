// QueuedMessage: a message that a user sends or receives, from when it is posted until it has ended.
//
// Messages wait in lists, and move between them without memory: what a list no longer needs goes to the pool.
//
// Threads: plain values; the lists belong to the thread that drives the communicator.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <new>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/core/buffer.h"
#include "collectives/core/collective.h"
#include "collectives/reduce/stream_call.h"

namespace annulus {

// In a receive: from whichever rank, and whatever the tag.
constexpr int kAnyPeer = -1;
constexpr int32_t kAnyTag = -1;

struct Message {
  bool sends = false;
  int peer = 0;  // A receive's may be kAnyPeer.
  ConstBuffer input;
  Buffer output;
  size_t count = 0;
  DataType type = DataType::kFloat32;
  void* cookie = nullptr;              // For MessagesConfig::done.
  Nanoseconds timeout = 0;             // 0: that of the config.
  uint16_t label = 0;                  // In the timeline (Trace::LabelOf).
  const StreamCall* stream = nullptr;  // Begins when this is ready; null: at once.
  int32_t tag = 0;                     // A receive's may be kAnyTag.

  bool IsReady() const { return stream == nullptr || stream->IsReady(); }
  // Whether a receive accepts messages with that tag.
  bool Accepts(int32_t other) const { return tag == kAnyTag || tag == other; }
};

struct QueuedMessage {
  Message message;
  uint64_t number = 0;  // Among the messages of its pair and direction, from 1; 0: not known yet.
  int32_t tag = 0;      // A receive has one once its message is known.
  uint64_t order = 0;   // Place of a receive among those of this rank, in the order in which they were posted.
  Nanoseconds begin = 0;
  Deadline deadline = kNoDeadline;  // kNoDeadline too while earlier ones of its kind are before it.
};

using MessageList = std::list<QueuedMessage>;

// Moves one between lists.
inline void MoveMessage(MessageList* from, MessageList::iterator message, MessageList* to) {
  to->splice(to->end(), *from, message);
}
inline void MoveFirst(MessageList* from, MessageList* to) { MoveMessage(from, from->begin(), to); }

// What messages leave behind, for others.
class MessagePool {
 public:
  // Appends the message to the list. Lets std::bad_alloc through, unless something is spare.
  void Add(const Message& message, MessageList* to) {
    if (spare_.empty()) spare_.emplace_back();
    MoveFirst(&spare_, to);
    to->back() = QueuedMessage{message};
  }
  // The same for a message that is posted: one of a graph goes before those whose streams are not ready, which may wait
  // for the graph. `order`: of receives, the latest one's place among those of the rank.
  void Post(const Message& message, MessageList* to, uint64_t* order = nullptr) {
    Add(message, to);
    const auto added = std::prev(to->end());
    const bool may_overtake = message.stream != nullptr && message.stream->is_replayed();
    const auto waits = [](const QueuedMessage& each) { return !each.message.IsReady(); };
    const auto first = may_overtake ? std::find_if(to->begin(), added, waits) : added;
    if (order != nullptr) added->order = first == added ? ++*order : first->order;
    to->splice(first, *to, added);
  }
  // Sees to it that the next Add needs no memory. Returns false when there is none.
  bool Prepare() {
    try {
      if (spare_.empty()) spare_.emplace_back();
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  }
  // Empties a list, for others to use what it held.
  void Recycle(MessageList* from) { spare_.splice(spare_.end(), *from); }

 private:
  MessageList spare_;
};

// Sets the time at which the message begins, and that by which it must have ended.
inline void SetDeadline(Nanoseconds now, Nanoseconds usual_timeout, QueuedMessage* queued) {
  const Nanoseconds timeout = queued->message.timeout > 0 ? queued->message.timeout : usual_timeout;
  queued->begin = now;
  queued->deadline = timeout > kNoDeadline - now ? kNoDeadline : now + timeout;
}

// The message's identity on the wire, the same at both ends.
inline Call CallOf(const Message& message, uint64_t number, int32_t tag) {
  Call call;
  call.sequence = number;
  call.kind = CollectiveKind::kSend;
  call.type = message.type;
  call.root = tag;
  call.count = message.count;
  return call;
}

inline size_t BytesOf(const Message& message) { return message.count * TypeBytes(message.type); }

}  // namespace annulus
