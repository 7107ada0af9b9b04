// MessageSender: the messages from this rank to one peer.
//
// A message is sent in the order of posting, at once where it is small; one with a tag other than 0 is announced by an
// empty slice (MessageForm). A message of more than EagerBytes (EagerBytesWithTags, once a message with a tag other
// than 0 was posted) is only offered in its turn; later ones go on. It follows when the peer has a receive for it, and
// says so by a grant. So no message that nobody asks for stands in the way of others.
//
// The peer's own offers are granted over the same link: between messages by an empty slice, within one by a note that
// goes with one of its slices.
//
// Threads: one at a time, the one that drives the communicator. Advance allocates nothing.
#pragma once

#include <array>

#include "collectives/engine/messages_config.h"

namespace annulus {

class MessageSender {
 public:
  explicit MessageSender(const MessageContext& context);

  // Whether nothing is queued or under way that would have to be sent before another message.
  bool is_idle() const { return is_idle_; }
  // Whether there is something to drive.
  bool busy() const { return !is_idle_ || !lists_.offered.empty(); }
  // Whether messages wait for grants.
  bool has_offers() const { return !lists_.offered.empty(); }

  // Lets std::bad_alloc through.
  void Post(const Message& message);
  // As Messages::MoveAtOnce, for a message in host memory with the tag 0. The sender is idle.
  AtOnce SendAtOnce(const Message& message) {
    return SendsWhole(BytesOf(message)) ? SendWhole(message) : SendOrBegin(message);
  }
  // The same for a message of which CopiesWhole is true: it is not lent.
  AtOnce SendWhole(const Message& message) {
    const size_t bytes = BytesOf(message);
    if (uses_tags_ && bytes > EagerBytesWithTags(context_.plan())) return AtOnce::kNo;  // It is offered.
    const AtOnce moved = runner_.SendWhole(CallOf(message, number_ + 1, 0), message.input.data, bytes);
    if (moved == AtOnce::kDone) CountSent(bytes);
    return moved;
  }
  bool SendsWhole(size_t bytes) const { return runner_.SendsWhole(bytes); }
  bool CopiesWhole(size_t bytes) const { return runner_.CopiesWhole(bytes); }
  // Whether all that there is to do is to end a message that SendAtOnce has begun.
  bool has_only_begun() const {
    return has_begun_ && lists_.queue.empty() && lists_.granted.empty() && lists_.offered.empty() &&
           context_.offers_taken->empty();
  }
  // Moves that message. Returns its cookie once it has ended; null before, or when it failed, which Advance says too.
  void* EndBegun();

  // The note for the next slice: a grant, or 0.
  uint32_t NextGrant();
  // The peer has a receive for the message whose number ends like this.
  void OnGrant(uint32_t number);

  // Moves what can be moved, but for the link. Errors: the link's; kProtocol for a grant of what was not offered.
  Status Advance(bool* moved);

  // Whether the next message waits for its stream.
  bool AwaitsStream() const;
  // The earliest deadline, or an earlier time.
  Deadline deadline() const { return deadline_; }
  // Returns the error for a message whose deadline lies before `now`, which becomes *failed; OK if there is none.
  Status Late(Nanoseconds now, Call* failed);
  // The message that an error now is about; sequence 0: none.
  Call Current() const;

 private:
  // Largest message whose slices are sent over shared memory from within the call that starts it, in bytes: to copy it
  // takes up to 25 us, as long as the largest receive at once (MessageRunner).
  static constexpr size_t kMostBegunBytes = 256 * 1024;
  // Empty slices that are under way at most.
  static constexpr size_t kMostEmpty = 4;

  // SendAtOnce for a message that may end later.
  AtOnce SendOrBegin(const Message& message);
  // The same for one that goes in slices, as a message that was posted does, over a link that shares memory.
  AtOnce BeginSlices(const Message& message);
  // Makes the message the current one. The pool is prepared.
  void KeepBegun(const Message& message);
  void CountSent(size_t bytes) {
    ++number_;
    context_.config->monitor->Sent(context_.peer, bytes);
  }
  Status BeginNext(bool* began);
  // Sets the deadline of the earliest message with that tag that was begun or is next, if it has none.
  void SetNextDeadline(int32_t tag);
  // Sends an empty slice of that form about `call`; `slice_bytes` is the slice size of data that follows. Sets *posted
  // once it is posted.
  Status PostEmpty(MessageForm form, Call call, size_t slice_bytes, bool* posted);
  size_t SliceBytesOf(const Message& message) const;
  void StartCurrent(size_t slice_bytes);
  // Takes the current message, which has been sent, off the list.
  QueuedMessage TakeSent();
  void Finish();
  void UpdateIdle();

  const MessageContext context_;
  MessageRunner runner_;
  Work work_;
  uint64_t number_ = 0;  // Number of the latest message that was offered or begun.
  struct {
    MessageList queue;    // Not begun.
    MessageList offered;  // Offered, and not granted.
    MessageList granted;  // Granted, and not begun.
    MessageList current;  // The one that is being sent, if any.
  } lists_;
  struct {
    std::array<Send, kMostEmpty> sends;
    std::byte* slot = nullptr;  // For the next one.
  } empty_;
  Deadline deadline_ = kNoDeadline;
  bool is_idle_ = true;
  bool has_begun_ = false;  // The current message was begun by SendAtOnce.
  bool uses_tags_ = false;  // A message with a tag other than 0 was posted.
  bool is_broken_ = false;  // The peer has granted what was not offered.
  bool lacks_memory_ = false;
};

}  // namespace annulus
