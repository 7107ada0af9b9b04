// MessageReceiver: the messages from one peer to this rank.
//
// While a receive waits for a message of the peer, or the peer is to grant one of ours, one receive of the link is
// posted, the head. What starts to arrive in it says what it is (MessageForm): a slice of a message, or a word about
// one. A message goes to the earliest receive that takes it, of those for this peer and those for any. One that no
// receive takes is held, so that others behind it can be received: up to HeldShareBytes of each peer, and up to
// HeldTogetherBytes beyond that on this rank; then it stays where it is. Of messages that are only offered nothing is
// held but the offer.
//
// The head lands in the user's memory where the next message without a notice can only be for that receive: only
// messages with the tag 0 come without one.
//
// Threads: one at a time, the one that drives the communicator. Advance allocates only for messages that are held.
#pragma once

#include <list>
#include <memory>

#include "collectives/algorithms/slice_tag.h"
#include "collectives/engine/message_sender.h"
#include "collectives/engine/messages_config.h"
#include "collectives/reduce/domain_queue.h"

namespace annulus {

class MessageReceiver {
 public:
  // `sender`, the other direction, outlives it.
  MessageReceiver(const MessageContext& context, MessageSender* sender);

  // Whether no message of the peer and no receive for it can be before a receive with the tag 0 that is posted now.
  // Receives from any rank are for the caller to know.
  bool is_idle() const { return is_idle_; }
  // Whether there is something to drive, receives from any rank apart, and messages that arrive for nobody yet.
  bool busy() const { return is_asked() || !lists_.posted.empty() || !lists_.taken.empty(); }
  // Whether something was asked for that has not come to its place.
  bool is_asked() const;
  // Whether the loss of the link would leave something undone that was asked for.
  bool needs_link() const;
  // Whether a message is arriving.
  bool is_arriving() const { return arrival_.is_running; }

  // Lets std::bad_alloc through.
  void Post(const Message& message);
  // As Messages::MoveAtOnce, for a receive into host memory with the tag 0. The receiver is idle, and nothing waits for
  // a message from any rank.
  AtOnce ReceiveAtOnce(const Message& message, int polls) {
    const size_t bytes = BytesOf(message);
    const AtOnce moved = runner_.ReceiveAtOnce(CallOf(message, number_ + 1, 0), message.output.data, bytes, polls);
    if (moved != AtOnce::kDone) return moved;
    ++number_;
    context_.config->monitor->Received(context_.peer, bytes);
    return moved;
  }
  // Compares receives with what is held, in the order of posting, up to the first one from any rank that was not.
  void Admit(bool* moved);
  // Order of the earliest receive for this peer that was not compared with what is held; the largest if there is none.
  uint64_t first_posted() const { return lists_.posted.empty() ? UINT64_MAX : lists_.posted.front().order; }
  // Gives the first receive of the list a message that is held, if it takes one. Returns whether it did. A mismatch is
  // returned by Advance.
  bool GiveHeld(MessageList* receives);

  // The earliest receive with the rank and tag of `like` whose message has come or was offered; null if there is none.
  QueuedMessage* FirstTaken(const Message& like);

  // Moves what can be moved, but for the link. Errors: the link's; kMismatch and kProtocol of what has come.
  Status Advance(bool* moved);

  // Whether a receive waits for its stream.
  bool AwaitsStream() const { return !lists_.posted.empty(); }
  // The earliest deadline, or an earlier time.
  Deadline deadline() const { return deadline_; }
  // Returns the error for a receive whose deadline lies before `now`, which becomes *failed; OK if there is none.
  Status Late(Nanoseconds now, Call* failed);
  // The message that an error now is about; sequence 0: none.
  Call Current() const;
  // Whether a message waits because no room is left to hold it.
  bool is_blocked() const { return head_.is_blocked; }

 private:
  // A message that came before its receive, or the offer of one.
  struct Held {
    Call call;
    std::unique_ptr<std::byte[]> data;  // Null for an offer.
    size_t bytes = 0;                   // Counted in MessagesShared::held_bytes.
    bool is_arriving = false;
    MessageList receive;  // The receive that has taken it, if any.
    bool is_copied = false;
    Submission copy;  // To the receive's buffer.
  };
  using HeldList = std::list<Held>;

  bool Listens() const;
  // Moves the first receive of the list to those that wait.
  void Await(MessageList* from);
  Status PostHead();
  // Acts on what has come in the head. Sets *took unless that has to stay there, or nothing has come.
  Status ReceiveHead(bool* took);
  // A new message, or the offer of one.
  Status OnNewMessage(const Call& call, MessageForm form, bool* took);
  Status CheckNew(const Call& call, MessageForm form) const;
  Status BeginOffered(const Call& call);
  // Sets *slice_bytes to the slice size of the message that begins in the head. Errors: kProtocol.
  Status ReadSliceBytes(const Call& call, MessageForm form, size_t* slice_bytes) const;
  void FreeHead();
  // The earliest receive in a list that takes the tag; end if there is none.
  static MessageList::iterator FirstFor(int32_t tag, MessageList* list);
  // Moves the earliest receive that takes the tag to `to`. Returns whether there is one.
  bool Match(int32_t tag, MessageList* to);
  // Compares a message with its receive.
  Status Check(const Message& receive, const Call& call) const;
  // Makes room for a message without a receive; null if there is none.
  Held* Hold(const Call& call, bool is_offer);
  void GiveBack(size_t bytes);
  // What of the peer's held bytes counts for all peers together.
  size_t BeyondShare(size_t bytes) const;
  // Lets the message arrive in the buffer of its receive or where it is held. `has_first`: its first slice is in the
  // head.
  void StartArrival(const Message& message, const Call& call, size_t slice_bytes, bool has_first);
  void EndArrival();
  // Copies what was held to its receives.
  Status Deliver(bool* moved);
  // Sets a receive's deadline, if none like it is before it.
  void SetDeadlineOf(QueuedMessage* receive);
  // A receive has ended: sets the deadline of the next one like it.
  void SetNextDeadlineLike(const Message& ended);
  // Ends the only receive of the list.
  void Finish(MessageList* receive);
  void UpdateIdle();
  Status LateStatus(const QueuedMessage& receive) const;

  const MessageContext context_;
  MessageSender* const sender_;
  MessageRunner runner_;
  Work work_;
  uint64_t number_ = 0;  // Number of the latest message that came or was offered.
  struct {
    MessageList posted;   // Their stream has not come to them, or they were not compared with what is held.
    MessageList waiting;  // For a message.
    MessageList current;  // The one whose message is arriving in its buffer, if any.
    HeldList held;
    HeldList taken;  // Held messages with a receive.
  } lists_;
  struct {
    Recv recv;
    bool is_posted = false;   // And not taken.
    bool is_blocked = false;  // It stays, since there is no room to hold it.
  } head_;
  struct {
    bool is_running = false;
    Held* held = nullptr;  // Where it goes; null: to the buffer of `current`.
  } arrival_;
  size_t held_bytes_ = 0;
  Status mismatch_;  // How a held message differs from its receive.
  Deadline deadline_ = kNoDeadline;
  bool is_idle_ = true;
};

// Sets the deadline of the first receive in a list that asks for the tag, and returns it. kNoDeadline: there is none,
// or it was set before.
Deadline SetNextDeadline(const MessagesConfig& config, int32_t tag, MessageList* waiting);

}  // namespace annulus
