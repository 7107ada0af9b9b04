// HopPeer: the slices that the one-hop exchange posts on the link with one peer, at most one each way.
//
// Threads: one at a time. Nothing allocates.
#pragma once

#include "collectives/algorithms/one_hop/piece_work.h"
#include "collectives/algorithms/work.h"

namespace annulus {

class HopPeer {
 public:
  explicit HopPeer(Endpoint* endpoint) : endpoint_(endpoint), in_place_(endpoint->shortcuts().in_place) {}

  // Begins the steps of the schedule that concern this peer; null: nothing goes in that direction. `work` stays valid
  // until done.
  void Start(const Work* work, const Step* send, const Step* receive);

  // Moves the slice to the peer, or the one from it. Sets *moved when something changed.
  Status Send(bool* moved);
  Status Receive(bool* moved);

  bool sent() const { return !sends_ || (send_posted_ && outgoing_.code == Code::kOk); }
  // Whether the peer's slice has arrived and, if it belongs in the output, has been stored there.
  bool came() const { return !receives_ || (received_ && stored_.done()); }
  // Arrived slice, when it is to be folded. Valid until Release.
  const std::byte* data() const { return incoming_.data; }
  // Gives the arrived slice back, unless it landed in the output.
  void Release();

  // Whether something posted is not complete, or failed.
  bool waits() const {
    return (send_posted_ && outgoing_.code != Code::kOk) || (recv_posted_ && incoming_.code != Code::kOk);
  }

 private:
  Status PostSend(bool* moved);
  Status Pack(bool* moved);

  Endpoint* const endpoint_;
  InPlace* const in_place_;  // May be null.
  const Work* work_ = nullptr;
  Step send_step_;
  Step recv_step_;
  annulus::Send outgoing_;
  Recv incoming_;
  std::byte* slot_ = nullptr;  // Slot that is being filled.
  PieceWork packed_;           // Copy of the user's input into the slot.
  PieceWork stored_;           // Copy of the arrived slice into the user's output.
  bool sends_ = false;
  bool receives_ = false;
  bool send_posted_ = false;
  bool recv_posted_ = false;
  bool received_ = false;
};

}  // namespace annulus
