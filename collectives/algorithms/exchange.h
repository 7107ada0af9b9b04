// Exchange: a small collective that does not follow a schedule. Its messages hold whole buffers or many blocks rather
// than slices of a user's buffer, and there are few of them. Their contents are staged in memory that the CPU,
// transports and devices can access (transport/memory/slot_memory.h). Only loads from the user's input and stores into
// the output are work for a device; the CPU does the rest.
//
// This class holds the parts that all exchanges share: an Inbox, an Outbox and one operation at a time. One message at
// a time is awaited, and only its link is polled, because every poll of a link may be a system call. Sends complete at
// any time, at the latest at the end.
//
// Threads: one at a time. Start and Advance allocate nothing, lock nothing and never block.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/algorithms/inbox.h"
#include "collectives/algorithms/outbox.h"
#include "collectives/algorithms/runner.h"
#include "collectives/algorithms/slice_tag.h"

namespace annulus {

class Exchange : public Runner {
 public:
  void Start(const ScheduleParams& params, const Work* work) override;
  bool WaitsFor(const Endpoint* endpoint) const override;
  int AwaitedPeer() const override;
  const std::vector<Endpoint*>& endpoints() const override { return endpoints_; }

  // Bytes that an exchange holds for up to `most_sends` sends.
  static size_t SendsBytes(int most_sends);

 protected:
  // `links` outlives it and has a link on channel 0 to each peer of the exchange.
  Exchange(int rank, int nranks, const Links* links, int most_sends);

  // Called by Start, when nothing is posted.
  virtual void Begin() = 0;
  Status Advance(bool* moved) override;
  // One step of the work. Sets *moved when something changed.
  virtual Status Step(bool* moved) = 0;

  bool has_data() const { return work_->call.kind != CollectiveKind::kBarrier; }
  Tag TagOf(int message) const { return PackTag(work_->call, {0, static_cast<uint64_t>(message), 0}); }

  // Submits `op` to `queue` (QueueFor), or checks its progress. Sets *complete once it is complete.
  Status AdvanceOp(const SliceOp& op, DomainQueue* queue, bool* complete);
  // Whether an operation is under way. Until it is complete, what it points to must not be written.
  bool submitted() const { return submitted_; }
  // A copy: an operation with one source.
  SliceOp Copy(std::byte* to, const std::byte* from, size_t elements) const;

  // Receives `bytes` from `from` as message number `message`. Sets *moved when something changed, and *complete once
  // all bytes have arrived: received().data then holds them until FinishReceive.
  Status Receive(int from, int message, size_t bytes, bool* moved, bool* complete) {
    return inbox_.Receive(from, TagOf(message), bytes, moved, complete);
  }
  const Recv& received() const { return inbox_.received(); }
  void FinishReceive() { inbox_.Finish(work_->monitor); }

  // Sends message number `message` to `to`: pack(slot) writes it and returns its size. Sets *moved and *posted once the
  // send is posted.
  template <class Pack>
  Status Post(int to, int message, Pack pack, bool* moved, bool* posted) {
    return outbox_.Post(to, TagOf(message), pack, moved, posted);
  }
  // Does both at once: Post to `to` and Receive from `from`, as message number `message`. Sets *complete once the send
  // is posted and the message has arrived.
  template <class Pack>
  Status Swap(int to, int from, int message, size_t bytes, Pack pack, bool* moved, bool* complete);
  // Whether all sends are complete; if so, accounts for them.
  bool SendsComplete();

  const int rank_;
  const int nranks_;
  const Links* const links_;
  const Work* work_ = nullptr;

 private:
  void FindEndpoints();

  Submission submission_;
  bool submitted_ = false;  // The operation of `submission_` was submitted and not yet seen complete.
  Inbox inbox_;
  Outbox outbox_;
  bool swap_posted_ = false;  // The send of a Swap is posted; its receive is in progress.
  std::vector<Endpoint*> endpoints_;
};

template <class Pack>
Status Exchange::Swap(int to, int from, int message, size_t bytes, Pack pack, bool* moved, bool* complete) {
  if (!swap_posted_) ANNULUS_RETURN_IF_ERROR(Post(to, message, pack, moved, &swap_posted_));
  bool arrived = false;
  ANNULUS_RETURN_IF_ERROR(Receive(from, message, bytes, moved, &arrived));
  if (!swap_posted_ || !arrived) return Status();
  swap_posted_ = false;
  *complete = true;
  return Status();
}

}  // namespace annulus
