// The two queues of a TCP link: sends and receives in the order in which they were posted, which is the order of their
// sequence numbers and of their completions, whatever lanes they travel on.
//
// Requests are linked through their own `next`, so a queue has no bound and never allocates.
//
// Threads: those of the endpoint.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "transport/tcp/slot_pool.h"
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
  // Takes it; returns its sequence number.
  uint64_t Take();

  // The number of a slice that goes out at once, without a request, while none is posted.
  uint64_t TakeNumber() { return taken_++; }

  // All of `send` has gone out. Completes it, and what was done before it, once all earlier ones are done.
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
  // `lanes` over which frames come; with one, they must come in order.
  RecvQueue(SlotPool* slots, size_t slot_bytes, int max_slots, int lanes)
      : slots_(slots), slot_bytes_(slot_bytes), max_slots_(max_slots), lanes_(lanes) {}

  // False when it needs a slot and all are promised or held.
  bool Post(Recv* recv);
  void Release(Recv* recv);

  // Finds the receive that `header` belongs to and starts it; `recv` is null while it is not posted.
  // Errors: kProtocol  the number or the size cannot be.
  Status Start(const FrameHeader& header, Recv** recv);

  bool IsPosted(uint64_t sequence) const { return sequence < posted_; }

  // Whether a frame may have that number.
  Status CheckSequence(uint64_t sequence) const;
  // The next frame is taken without a receive, while none is posted.
  void Skip() { ++completed_, ++posted_; }

  // All of `recv` has arrived. Completes it as SendQueue does.
  void MarkDone(Recv* recv, bool* moved);

  void FailAll(Code code);
  bool empty() const { return head_ == nullptr; }

 private:
  void CompleteHead(Code code);

  SlotPool* const slots_;
  const size_t slot_bytes_;
  const int max_slots_;
  const int lanes_;
  int slots_promised_ = 0;  // To receives that are posted without landing, or held.
  Recv* head_ = nullptr;
  Recv* tail_ = nullptr;
  uint64_t completed_ = 0;  // The sequence number of head_.
  uint64_t posted_ = 0;     // One past that of tail_.
};

}  // namespace annulus
