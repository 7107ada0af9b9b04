// The two queues of a TCP link: sends and receives in the order in which they were posted. Sequence numbers and
// completions follow this order, whatever lanes the slices travel on.
//
// Requests are linked through their own `next`, so a queue has no bound and never allocates.
//
// Threads: those of the endpoint.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transport/tcp/session/slot_pool.h"
#include "transport/transport.h"
#include "transport/wire/frame.h"

namespace annulus {

class SendQueue {
 public:
  // `slots` lends the slots that sends may point into.
  explicit SendQueue(SlotPool* slots) : slots_(slots) {}

  void Post(Send* send);

  // The first send that no lane has taken yet, or null.
  Send* untaken() const { return untaken_; }
  // Takes that send; returns its sequence number.
  uint64_t NumberSend();

  // Returns a sequence number for a slice that goes out at once, without a request, while no send is posted.
  uint64_t NextNumber() { return taken_++; }

  // Records that all of `send` has gone out. Completes it once all earlier sends are done, and then any later sends
  // that are done already.
  void MarkDone(Send* send, bool* moved);

  void FailAll(Code code);
  bool empty() const { return head_ == nullptr; }

 private:
  void CompleteHead(Code code);

  SlotPool* const slots_;
  Send* head_ = nullptr;
  Send* tail_ = nullptr;
  Send* untaken_ = nullptr;
  uint64_t taken_ = 0;
};

class RecvQueue {
 public:
  // `lanes`: number of lanes that frames come over; with one lane they must come in order. `lands`: slices land where
  // their receives say; otherwise in slots always.
  RecvQueue(SlotPool* slots, size_t slot_bytes, int max_slots, int lanes, bool lands)
      : slots_(slots), slot_bytes_(slot_bytes), max_slots_(max_slots), lanes_(lanes), lands_(lands) {}

  // Returns false when `recv` needs a slot and all slots are promised or held.
  bool Post(Recv* recv);
  void Release(Recv* recv);

  // Finds the receive that `header` belongs to and starts it; *recv is null while it is not posted.
  // Errors: kProtocol  the sequence number or the size is impossible.
  Status BeginReceive(const FrameHeader& header, Recv** recv);

  bool IsPosted(uint64_t sequence) const { return sequence < posted_; }

  // Checks that a frame may have that number. Errors: kProtocol.
  Status CheckSequence(uint64_t sequence) const;
  // Counts the next frame as taken without a receive, while none is posted.
  void Skip() { ++completed_, ++posted_; }

  // Records that all of `recv` has arrived. Completes it as SendQueue does.
  void MarkDone(Recv* recv, bool* moved);

  void FailAll(Code code);
  bool empty() const { return head_ == nullptr; }

 private:
  bool NeedsSlot(const Recv& recv) const { return recv.landing == nullptr || !lands_; }
  void CompleteHead(Code code);

  SlotPool* const slots_;
  const size_t slot_bytes_;
  const int max_slots_;
  const int lanes_;
  const bool lands_;
  int slots_promised_ = 0;  // Slots of receives that are posted without landing, or held.
  Recv* head_ = nullptr;
  Recv* tail_ = nullptr;
  uint64_t completed_ = 0;  // Sequence number of head_.
  uint64_t posted_ = 0;     // One past the sequence number of tail_.
};

}  // namespace annulus
