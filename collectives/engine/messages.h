// Messages: point-to-point messages between ranks.
//
// A receive asks for messages of one rank or of any, and with one tag or with any. A message goes to the earliest
// receive that takes it, and a receive gets the earliest message of a rank that it takes, in the orders in which the
// two were posted. A message that no receive asks for does not hold up others of its pair, as long as there is room
// for it (HeldBytes). Messages with different peers, and in different directions, are independent. They are also
// independent of collectives: messages have links of their own.
//
// Threads: Post and Reserve from any; the rest from one thread at a time, the one that drives the communicator. A lock
// of the owner's guards what is posted, so that a message is posted, or moved at once, within one lock of its queue's.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "collectives/engine/message_peer.h"

namespace annulus {

class Messages {
 public:
  explicit Messages(MessagesConfig config);

  // Makes room for messages that are posted next. Lets std::bad_alloc through.
  void Reserve(size_t messages);
  // Queues one message for which there is room. Its buffer is borrowed until it is done or, after a failure, until the
  // links are closed.
  void Post(const Message& message);

  // Whether there is anything to drive.
  bool busy() const { return !active_.empty() || has_inbox_.load(std::memory_order_acquire); }

  // Moves everything that can move now, without blocking. Sets *moved when something changed. An error concerns the
  // whole communicator, and sticks.
  Status Progress(bool* moved);

  // Functions for the thread that drives, with config.mu held:
  // Gives the room of one message back.
  void Unreserve() { --reserved_; }
  // Short cut in place of Post, for a message in host memory of up to Limits::short_bytes over a link with a short
  // path, with the tag 0 and one peer: sends or receives it if that is possible at once. It looks `polls` times, or
  // less often, for one that is to be received. Returns kBegun only for messages with a cookie; `done` then follows. It
  // is not called for kDone. kNo: nothing has happened, and Post finds out why. Nothing allocates.
  AtOnce MoveAtOnce(const Message& message, int polls);
  // The same for the message with that cookie, if it was posted and nothing has been done about it yet.
  AtOnce MovePostedAtOnce(const void* cookie, int polls);
  // Whether there is anything to drive beside the message with that cookie.
  bool HasOthers(const void* cookie) const {
    return !active_.empty() || inbox_.size() > 1 || (!inbox_.empty() && inbox_.front().cookie != cookie);
  }
  // Whether there is anything to drive beside messages that EndBegun ends and those that are posted and whose cookies
  // `is_own` accepts.
  template <class IsOwn>
  bool HasOthersThan(IsOwn is_own) const {
    if (!active_.empty() && !HasOnlyBegun()) return true;
    return !std::ranges::all_of(inbox_, [&is_own](const Message& each) { return is_own(each.cookie); });
  }
  // Whether all that has been taken on is messages that MoveAtOnce has begun.
  bool HasOnlyBegun() const;
  // Moves these. Returns the cookie of one that has ended, for which `done` is not called; null if none has, or there
  // are others, which Progress has to drive.
  void* EndBegun();
  // As Reserve, where that needs no memory, for a message whose route has been used before. Returns false, and does
  // nothing, otherwise.
  bool ReserveAgain(const Message& message);
  // As MoveAtOnce or, where that does nothing, Post; only Post unless it `moves`, which is for sends. Looking for the
  // message of a receive that has only just been started would take from its peer the line that it is about to write.
  // `has_room`: there is room for the message, which is used or given back; otherwise nothing is done unless
  // ReserveAgain would succeed.
  AtOnce MoveOrPost(const Message& message, bool moves, bool has_room);

  // Functions for that thread, without it:
  // As in Engine.
  int AwaitedPeer() const;
  bool Arm();

  // When to look again, though nothing wakes the reactor: a message waits for its stream. After each Arm; kNoDeadline
  // when there is none.
  Deadline look_at() const { return look_at_; }

  // Memory for the peers so far and for messages that are held, in bytes. From any thread.
  size_t MemoryBytes() const { return peer_bytes_.load(std::memory_order_relaxed) + shared_.held_bytes; }
  // What it may grow by, through messages that are held.
  size_t RoomToHoldBytes() const { return HeldBytes(config_.nranks, config_.plan) - shared_.held_bytes; }

  // Earliest deadline of the current messages; kNoDeadline when there are none.
  Deadline deadline() const;
  // Returns the error for a message whose deadline lies before `now`, OK if there is none.
  Status Late(Nanoseconds now);

  // Message that the latest error was about; sequence 0 when there was none.
  const Call& failed() const { return failed_; }

 private:
  MessagePeer* PeerOf(int rank);
  // Has the peer driven.
  void Activate(MessagePeer* peer);
  // With the lock held, as the next two.
  bool HasRoomAgain(const Message& message) const;
  // Peer of a message that is to move at once, if no message with it, or for any rank, nor one in [inbox_.begin(), end)
  // is before it; else null.
  MessagePeer* IdlePeerOf(const Message& message, std::vector<Message>::const_iterator end);
  AtOnce MoveAtOnce(MessagePeer* peer, const Message& message, int polls);
  void EmptyInbox();
  bool HasAny() const { return !shared_.any_posted.empty() || !shared_.any_waiting.empty(); }
  // Compares receives from any rank with the messages that are held, each after all receives that were posted before
  // it.
  void AdmitAny(bool* moved);
  // The error when a receive from any rank waits and no rank is left.
  Status CheckAny();

  const MessagesConfig config_;
  MessagesShared shared_;
  std::vector<std::unique_ptr<MessagePeer>> peers_;  // By rank; created on first use.
  std::vector<MessagePeer*> active_;
  size_t turn_ = 0;  // Index of the active peer that comes first.
  Call failed_;
  Deadline look_at_ = kNoDeadline;
  Nanoseconds pause_ = 0;  // Between looks at streams.
  std::atomic<size_t> peer_bytes_{0};
  std::atomic<bool> has_inbox_{false};
  std::vector<Message> inbox_;  // Has room for `reserved_` more.
  size_t reserved_ = 0;         // Messages that will be posted.
};

}  // namespace annulus
