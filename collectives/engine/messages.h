// Messages: point-to-point messages between ranks.
//
// A receive asks for messages of one rank or of any, and with one tag or with any. A message goes to the earliest
// receive that takes it, and a receive gets the earliest message of a rank that it takes, in the orders in which the
// two were posted. A message that no receive asks for does not hold up others of its pair, as long as there is room
// for it (HeldBytes). Messages with different peers, and in different directions, are independent. They are also
// independent of collectives: messages have links of their own.
//
// Threads: one at a time, the one that drives the communicator. What is posted lies in a queue of the owner's
// (MessagesConfig::first_posted), so that a message is posted, or moved at once, within one lock of that.
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

  // Whether there is anything to drive, and whether it is more than what is posted.
  bool busy() const { return has_active() || config_.has_posted->load(std::memory_order_acquire); }
  bool has_active() const { return !active_.empty(); }

  // Moves everything that can move now, without blocking. Sets *moved when something changed. An error concerns the
  // whole communicator, and sticks.
  Status Progress(bool* moved);

  // Sends or receives a message at once, in place of posting it, if that is possible: it lies in host memory, has the
  // tag 0 and one peer, nothing is posted before it, and it goes by the link's short path or, if it is sent over shared
  // memory, in slices of up to 256 KiB in all (MessageSender).
  // Looks up to `polls` times for one to receive. kBegun: it has a cookie, and `done` follows, as it does not after
  // kDone. kNo: nothing has happened; posting it finds out why. Nothing allocates.
  AtOnce MoveAtOnce(const Message& message, int polls) {
    if (!message.sends) return ReceiveAtOnce(message, polls);
    MessagePeer* const peer = IdlePeerOf(message);
    if (peer == nullptr || !message.IsReady() || message.input.queue != nullptr) return AtOnce::kNo;
    const AtOnce moved = peer->sender().SendAtOnce(message);
    if (moved == AtOnce::kBegun) [[unlikely]]
      Activate(peer);
    return moved;
  }
  // MoveAtOnce for a send of which CopiesWhole is true: it is copied, not lent.
  AtOnce SendWhole(const Message& message) {
    MessagePeer* const peer = IdlePeerOf(message);
    const bool may = peer != nullptr && message.IsReady() && message.input.queue == nullptr;
    return may ? peer->sender().SendWhole(message) : AtOnce::kNo;
  }
  // MoveAtOnce for a receive.
  AtOnce ReceiveAtOnce(const Message& message, int polls) {
    MessagePeer* const peer = IdlePeerOf(message);
    const bool may = peer != nullptr && message.IsReady() && message.output.queue == nullptr;
    return may ? peer->receiver().ReceiveAtOnce(message, polls) : AtOnce::kNo;
  }
  // The number of ranks with which messages can be exchanged: all, or 0 where there is no mesh.
  int num_peers() const { return num_peers_; }
  // Whether MoveAtOnce never begins a send to that peer of so many bytes. False for the first one.
  bool SendsWhole(int peer, size_t bytes) const {
    const MessagePeer* const known = peers_[static_cast<size_t>(peer)].get();
    return known != nullptr && known->sender().SendsWhole(bytes);
  }
  // Whether that is so if it is not lent.
  bool CopiesWhole(int peer, size_t bytes) const {
    const MessagePeer* const known = peers_[static_cast<size_t>(peer)].get();
    return known != nullptr && known->sender().CopiesWhole(bytes);
  }
  // Whether all that has been taken on is messages that MoveAtOnce has begun.
  bool HasOnlyBegun() const;
  // Moves these. Returns the cookie of one that has ended, for which `done` is not called; null if none has, or there
  // are others, which Progress has to drive.
  void* EndBegun();

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
  // Peer of a message that is to move at once, if none that was taken on, with it or for any rank, is before it; else
  // null. The first message makes the peer.
  MessagePeer* IdlePeerOf(const Message& message) {
    if (message.peer < 0 || message.tag != 0) return nullptr;
    MessagePeer* const peer = peers_[static_cast<size_t>(message.peer)].get();
    if (peer == nullptr) return nullptr;
    const bool is_idle = message.sends ? peer->sender().is_idle() : peer->receiver().is_idle() && !HasAny();
    return is_idle ? peer : nullptr;
  }
  // Takes on what is posted. Errors: kOutOfMemory.
  Status AcceptPosted();
  bool HasAny() const { return !shared_.any_posted.empty() || !shared_.any_waiting.empty(); }
  // Compares receives from any rank with the messages that are held, each after all receives that were posted before
  // it.
  void AdmitAny(bool* moved);
  // The error when a receive from any rank waits and no rank is left.
  Status CheckAny();

  const MessagesConfig config_;
  const int num_peers_;
  MessagesShared shared_;
  std::vector<std::unique_ptr<MessagePeer>> peers_;  // By rank; created on first use.
  std::vector<MessagePeer*> active_;
  size_t turn_ = 0;  // Index of the active peer that comes first.
  Call failed_;
  Deadline look_at_ = kNoDeadline;
  Nanoseconds pause_ = 0;  // Between looks at streams.
  std::atomic<size_t> peer_bytes_{0};
};

}  // namespace annulus
