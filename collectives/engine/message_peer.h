// MessagePeer: both directions of the messages with one peer, over one link.
//
// Threads: one at a time, the one that drives the communicator.
#pragma once

#include <algorithm>
#include <cstdint>

#include "collectives/engine/message_receiver.h"
#include "collectives/engine/message_sender.h"

namespace annulus {

class MessagePeer final : private SliceNotes {
 public:
  // `config` and `shared` outlive it.
  MessagePeer(int peer, const MessagesConfig& config, MessagesShared* shared);
  MessagePeer(const MessagePeer&) = delete;
  MessagePeer& operator=(const MessagePeer&) = delete;

  int rank() const { return context_.peer; }
  MessageSender& sender() { return sender_; }
  const MessageSender& sender() const { return sender_; }
  MessageReceiver& receiver() { return receiver_; }

  // Whether there is something to drive, receives from any rank apart.
  bool busy() const { return sender_.busy() || receiver_.busy() || (loss_.ok() && receiver_.is_arriving()); }

  // Whether all that there is to do is to end a message that was begun at once.
  bool has_only_begun() const { return sender_.has_only_begun() && receiver_.is_idle() && loss_.ok(); }

  // Moves what can be moved. Sets *moved when something changed. Errors: what has come is wrong, or the link is lost
  // and something needs it.
  Status Progress(bool* moved);
  // The message that the latest error was about; sequence 0: none.
  const Call& failed() const { return failed_; }
  // Why the link is lost, which matters only to receives from any rank; OK if it is not.
  const Status& loss() const { return loss_; }

  // As Runner::Arm.
  bool Arm();
  // Whether a message waits for its stream.
  bool AwaitsStream() const { return sender_.AwaitsStream() || receiver_.AwaitsStream(); }
  Deadline deadline() const { return std::min(sender_.deadline(), receiver_.deadline()); }
  Status Late(Nanoseconds now);

 private:
  uint32_t Next() override { return sender_.NextGrant(); }
  void Hear(uint32_t note) override { sender_.OnGrant(note); }
  bool NeedsLink() const { return sender_.busy() || receiver_.needs_link(); }

  OffersTaken offers_taken_;
  const MessageContext context_;
  MessageSender sender_;
  MessageReceiver receiver_;
  Status loss_;
  Call failed_;
};

}  // namespace annulus
