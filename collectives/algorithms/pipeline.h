// Pipeline: runs one channel's schedule over its links, with a window of steps in flight.
//
// A step in flight (a Flight) passes through: receive posted, slice started and its tag checked, work submitted to the
// device piece by piece as bytes arrive, send posted and extended as work completes, everything complete. Data takes
// the shortest way that both links and the device allow:
//   * an allgather slice lands in the user's output and is forwarded from there, untouched by the CPU;
//   * a slice to reduce is combined with the local input straight into the next hop's slot (shared memory), or in the
//   staging
//     slot where it arrived and sent from there (TCP), and at the last hop into the output in the same pass;
//   * the first hop sends from the user's input where the transport can, unless the input is scaled first;
//   * peers that share memory read registered input and output where they are: no slot is written.
//
// Threads: one at a time. Progress allocates nothing, locks nothing and never blocks.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "collectives/algorithms/slice_tag.h"
#include "collectives/core/links.h"
#include "collectives/core/schedule.h"
#include "collectives/core/segments.h"
#include "collectives/observe/monitor.h"
#include "collectives/observe/trace.h"
#include "collectives/reduce/device.h"

namespace annulus {

// What all channels of one collective share.
struct Work {
  Call call;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  DataType type = DataType::kFloat32;  // kBroadcast and the like copy bytes whatever the type.
  size_t element_bytes = 1;
  ReduceOp op = ReduceOp::kSum;
  CustomReduction custom;
  uint32_t divisor = 0;  // Of finished reductions; 0 = none.
  int rank = 0;
  int nranks = 1;
  Device* device = nullptr;
  const Links* links = nullptr;
  Monitor* monitor = nullptr;
  // Whether sends may wait for the peer to have read them in place; not when the peer holds on to what it received
  // until all its own sends are complete (kHold).
  bool sends_in_place = false;
  bool streams_output = false;         // The output is larger than the caches, and nothing of it was read lately.
  const Segments* segments = nullptr;  // In place of input and output: what the offsets of the schedule refer to.

  // The user memory at an offset of the schedule, and how much of it is in one piece.
  struct Place {
    const std::byte* data = nullptr;
    size_t bytes = 0;
  };
  Place InputAt(size_t offset) const {
    if (segments == nullptr) return {input + offset, SIZE_MAX};
    const Segments::Place place = segments->At(offset);
    return {place.input, place.bytes};
  }
  Place OutputAt(size_t offset) const {
    if (segments == nullptr) return {output + offset, SIZE_MAX};
    const Segments::Place place = segments->At(offset);
    return {place.output, place.bytes};
  }
};

class Pipeline {
 public:
  // Keeps up to `window` steps in flight.
  Pipeline(int channel, int window);

  // `work` stays valid until the pipeline is done or destroyed, `other`, which runs the other level of kTwoLevel, until
  // this one is done.
  void Start(const Schedule& schedule, const Work* work, const Pipeline* other = nullptr);

  // All steps before this one are done.
  uint64_t steps_done() const { return head_ == tail_ ? next_step_ : flights_[head_ % window_].index; }

  // Moves every flight as far as it goes now. Sets *moved when something changed.
  // Errors: kMismatch or kProtocol of a slice, or a link's error; the pipeline then must not be used before the next
  // Start.
  Status Advance(bool* moved);

  // Whether something posted on that link has not completed, or failed.
  bool WaitsFor(const Endpoint* endpoint) const;

  // The rank that the first step which is not done waits for, to receive from it before sending to it. -1 for none.
  int AwaitedPeer() const;

  // What a pipeline of that window holds.
  static size_t MemoryBytes(int window) { return sizeof(Pipeline) + static_cast<size_t>(window) * sizeof(Flight); }

  bool done() const { return next_step_ == schedule_.size() && head_ == tail_; }
  // Whether the device still works for it: then nothing would wake a sleeping driver.
  bool waits_for_device() const { return pending_tickets_ > 0; }

 private:
  struct Flight {
    Step step;
    uint64_t index = 0;  // Of the step.
    Endpoint* source = nullptr;
    Endpoint* target = nullptr;
    Recv own_recv;
    Recv* recv = nullptr;  // own_recv, or the hold of a kHold step; null when the step receives nothing.
    Send send;
    std::byte* slot = nullptr;  // Where the work writes what is sent on; null when it does not,
    bool streams_slot = false;  // and whether past the caches.
    Device::Ticket ticket = Device::kCompleted;
    size_t submitted = 0;  // Bytes given to the device.
    size_t worked = 0;     // Bytes whose result is in place.
    bool recv_posted = false;
    bool verified = false;
    bool received = false;
    bool planned = false;
    bool writes_output = false;  // The work writes the user's output.
    bool sends_arrival = false;  // The send reads the arrival's slot.
    bool released = false;
    bool send_posted = false;
    bool done = false;
  };
  // An earlier flight still has to post on that direction, so later ones must wait.
  struct Order {
    bool receive_blocked = false;
    bool send_blocked = false;
  };

  void FillWindow(bool* moved);
  void Prepare(Flight* flight);
  Status AdvanceFlight(Flight* flight, bool is_head, Order* order, bool* moved);
  Status Receive(Flight* flight, Order* order, bool* moved);
  Status Relay(Flight* flight, Order* order, bool* moved);
  Status Plan(Flight* flight);
  Status PlanSend(Flight* flight);
  Status WorkOn(Flight* flight, bool* moved);
  Status SubmitPiece(Flight* flight, size_t end);
  Status Forward(Flight* flight, bool* moved);
  Status Fold(Flight* flight, bool* moved);
  Status SubmitFold(Flight* flight);
  Status Retire(Flight* flight, bool* moved);
  void ReleaseHolds();
  bool UsesInput(const Flight& flight) const { return flight.recv == nullptr || flight.step.reduce; }
  bool Scales(const Step& step) const { return work_->custom.scales && !step.from_output; }
  Work::Place SourceAt(const Step& step, size_t offset) const {
    return step.from_output ? work_->OutputAt(step.output_offset + offset) : work_->InputAt(step.input_offset + offset);
  }
  bool MustAwait(const Step& step) const { return step.awaits > 0 && other_->steps_done() < step.awaits; }
  // For the trace, when there is one: the time, else 0; and an event of that slice.
  Nanoseconds TraceClock() const { return work_->monitor->trace() == nullptr ? 0 : Now(); }
  void TraceSlice(TraceEvent::Kind kind, const Step& step, int peer, size_t bytes, Nanoseconds begin) const;
  bool Landed(const Flight& flight) const { return flight.recv != nullptr && flight.recv->landing != nullptr; }
  Tag TagOf(const Step& step) const;

  const int channel_;
  const size_t window_;
  std::unique_ptr<Flight[]> flights_;
  Schedule schedule_;
  const Work* work_ = nullptr;
  const Pipeline* other_ = nullptr;
  size_t next_step_ = 0;
  size_t head_ = 0;  // Flights in [head_, tail_), modulo window_.
  size_t tail_ = 0;
  int pending_tickets_ = 0;
  std::array<Recv, kMaxOneHopRanks> holds_;  // By rank.
  std::array<bool, kMaxOneHopRanks> held_{};
  std::array<const std::byte*, kMaxOneHopRanks> fold_sources_{};
};

}  // namespace annulus
