// HopPeer: a slice to one peer, and one from it, of an exchange in one or two hops.
//
// Threads: one at a time. Nothing allocates.
#pragma once

#include "collectives/algorithms/one_hop/piece_work.h"
#include "collectives/algorithms/work.h"

namespace annulus {

class HopPeer {
 public:
  // `lends`: the peer may read registered memory in place, which takes as long as it likes.
  explicit HopPeer(Endpoint* endpoint, bool lends = false)
      : endpoint_(endpoint), in_place_(endpoint->shortcuts().in_place), lends_(lends) {}

  // Begins the steps of the schedule that concern this peer; null: nothing goes in that direction. `work` stays valid
  // until done.
  void Start(const Work* work, const Step* send, const Step* receive);

  // Moves the slice to the peer, or the one from it. Sets *moved when something changed.
  Status Send(bool* moved);
  Status Receive(bool* moved);

  // Errors of a slice that was posted (Work::OutcomeOfSend).
  Status SendOutcome() const { return Work::OutcomeOfSend(outgoing_.code, send_step_.send_to); }

  bool send_posted() const { return send_posted_; }
  bool recv_posted() const { return recv_posted_; }
  bool sent() const { return !sends() || (send_posted_ && outgoing_.code == Code::kOk); }
  // Whether the peer's slice has arrived and, if it belongs in the output, has been stored there.
  bool came() const { return !receives() || (received_ && stored_.done()); }
  // Arrived slice, when it is to be folded. Valid until Release.
  const std::byte* data() const { return incoming_.data; }
  // Gives the arrived slice back, unless it landed in the output. Errors: kPeerLost when the peer gave up while its
  // memory was read in place.
  Status Release();

  // Whether something posted is not complete, or failed.
  bool waits() const {
    return (send_posted_ && outgoing_.code != Code::kOk) || (recv_posted_ && incoming_.code != Code::kOk);
  }

 private:
  Status PostSend(bool* moved);
  Status Pack(bool* moved);
  bool sends() const { return send_step_.send_to >= 0; }
  bool receives() const { return recv_step_.recv_from >= 0; }
  Work::Place SourceAt(size_t offset) const {
    const Step& step = send_step_;
    return step.from_output ? work_->OutputAt(step.output_offset + offset) : work_->InputAt(step.input_offset + offset);
  }
  // For a slice that has started.
  bool landed() const { return incoming_.landing != nullptr && incoming_.data == incoming_.landing; }
  bool Scales() const { return work_->custom.scales && !send_step_.from_output; }
  // Whether the slice can be sent from where it is.
  bool SendsFrom(const Work::Place& source) const;

  Endpoint* const endpoint_;
  InPlace* const in_place_;  // May be null.
  const bool lends_;
  const Work* work_ = nullptr;
  Step send_step_;
  Step recv_step_;
  annulus::Send outgoing_;
  Recv incoming_;
  std::byte* slot_ = nullptr;  // Slot that is being filled.
  PieceWork packed_;           // Copy of the user's data into the slot.
  PieceWork stored_;           // Copy of the arrived slice into the user's output.
  bool send_posted_ = false;
  bool recv_posted_ = false;
  bool received_ = false;
};

}  // namespace annulus
