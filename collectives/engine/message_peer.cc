#include "collectives/engine/message_peer.h"

#include <utility>

namespace annulus {

MessagePeer::MessagePeer(int peer, const MessagesConfig& config, MessagesShared* shared)
    : context_{peer, &config, shared, &offers_taken_, this, config.links->At(peer, MessageChannel(config.plan))},
      sender_(context_),
      receiver_(context_, &sender_) {}

Status MessagePeer::Progress(bool* moved) {
  Status link = context_.endpoint->Progress(moved);
  Status status = receiver_.Advance(moved);
  const bool receives = !status.ok() || (!link.ok() && receiver_.needs_link());
  // More of what was asked for is to come, and nothing can be posted for it.
  const bool is_cut_off = !status.ok() && receiver_.is_asked();
  if (status.ok()) status = sender_.Advance(moved);
  // A slice that breaks its link may also give the reason: a mismatched message says more than "frame too long".
  const bool says_more = !status.ok() && status.code() != Code::kPeerLost;
  if (says_more || link.ok()) link = std::move(status);
  if (link.ok()) return link;
  // A peer may leave when nothing needs it any more. Whoever waits for a message from any rank has others. What breaks
  // the protocol is never excused.
  if (link.code() == Code::kPeerLost && !NeedsLink() && !is_cut_off) {
    loss_ = std::move(link);
    return Status();
  }
  failed_ = receives ? receiver_.Current() : sender_.Current();
  return link;
}

bool MessagePeer::Arm() {
  // A lost link for which nobody waits is no reason to stay awake.
  return (!loss_.ok() && !NeedsLink()) || context_.endpoint->Arm();
}

Status MessagePeer::Late(Nanoseconds now) {
  ANNULUS_RETURN_IF_ERROR(receiver_.Late(now, &failed_));
  Status late = sender_.Late(now, &failed_);
  // The peer's word that it has a receive may be behind the message for which there is no room here.
  if (late.ok() || !receiver_.is_blocked()) return late;
  return {late.code(), late.message() + kNoRoom, late.peer(), 0};
}

}  // namespace annulus
