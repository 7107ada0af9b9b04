// Outbox: the messages that an exchange sends. They complete in any order with what else the exchange does, at the
// latest at its end.
//
// Threads: one at a time. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "collectives/core/links.h"
#include "collectives/observe/monitor.h"

namespace annulus {

class Outbox {
 public:
  // For up to `most_sends` messages. `links` outlives it.
  Outbox(const Links* links, int most_sends) : links_(links), sends_(most_sends) {}

  // Bytes that it holds for up to `most_sends` messages.
  static size_t MemoryBytes(int most_sends) { return static_cast<size_t>(most_sends) * sizeof(Outgoing); }

  // Begins anew, with nothing posted.
  void Reset();

  // Sends a message to `to`: pack(slot) writes it and returns its size. Sets *moved and *posted once the send is
  // posted. Until then call it again with the same message.
  template <class Pack>
  Status Post(int to, const Tag& tag, Pack pack, bool* moved, bool* posted);

  // Rank whose message is still to be posted; -1: none.
  int unsent() const { return unsent_; }
  // Calls act(rank) for each posted message that is not complete, in their order.
  template <class Act>
  void ForPending(Act act) const {
    for (size_t i = 0; i < posted_; ++i) {
      if (sends_[i].send.code != Code::kOk) act(sends_[i].to);
    }
  }
  // First rank whose posted message is not complete; -1: none.
  int FirstPending() const;
  // The first error of a posted message (Work::OutcomeOfSend).
  Status Outcome() const;
  // Counts all that was posted as sent.
  void CountAll(Monitor* monitor) const;

 private:
  struct Outgoing {
    Send send;
    int to = -1;
  };

  const Links* const links_;
  std::vector<Outgoing> sends_;
  size_t posted_ = 0;
  std::byte* slot_ = nullptr;  // Slot that is packed but not posted yet.
  size_t slot_filled_ = 0;
  int unsent_ = -1;
};

template <class Pack>
Status Outbox::Post(int to, const Tag& tag, Pack pack, bool* moved, bool* posted) {
  Endpoint* const target = links_->At(to, 0);
  unsent_ = to;
  if (slot_ == nullptr) {
    Status acquired = target->AcquireSlot(Endpoint::kWholeSlot, &slot_);
    if (acquired.would_block()) return Status();
    ANNULUS_RETURN_IF_ERROR(std::move(acquired));
    slot_filled_ = pack(slot_);
  }
  Outgoing& outgoing = sends_[posted_];
  outgoing.to = to;
  outgoing.send = Send();
  outgoing.send.tag = tag;
  outgoing.send.data = slot_;
  outgoing.send.bytes = outgoing.send.ready = static_cast<uint32_t>(slot_filled_);
  Status accepted = target->PostSend(&outgoing.send);
  if (accepted.would_block()) return Status();
  ANNULUS_RETURN_IF_ERROR(std::move(accepted));
  slot_ = nullptr;
  unsent_ = -1;
  ++posted_;
  *posted = *moved = true;
  return Status();
}

}  // namespace annulus
