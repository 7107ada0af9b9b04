// Pipeline: runs one channel's schedule over its links, with a window of steps in flight.
//
// A step in flight (a Flight) passes through: receive posted, slice started and its tag checked, work submitted to the
// memory's domain piece by piece as bytes arrive, send posted and extended as work completes, everything complete. Data
// takes the shortest path that both links and the domain allow:
//   * an allgather slice lands in the user's output and is forwarded from there, untouched by the CPU;
//   * a slice to reduce is combined with the local input straight into the next hop's slot (shared memory), or in the
//     staging slot where it arrived and sent from there (TCP), and at the last hop into the output in the same pass;
//   * the first hop sends from the user's input where the transport supports it, unless the input is scaled first;
//   * peers that share memory read registered input and output in place, and no slot is written; their devices do that
//     with what lies in devices' memory.
//
// Threads: one at a time. Progress allocates nothing, locks nothing and never blocks.
#pragma once

#include <memory>
#include <vector>

#include "collectives/algorithms/slice_tag.h"
#include "collectives/algorithms/work.h"
#include "collectives/core/schedule.h"

namespace annulus {

class Pipeline {
 public:
  // Keeps up to `window` steps in flight.
  Pipeline(int channel, int window);

  // `schedule` and `work` stay valid until the pipeline is done or destroyed. `other` runs the other level of kTwoLevel
  // and stays valid until this pipeline is done. `first` is the receive of step 0 if that is already posted, and stays
  // valid as long.
  void Start(const Schedule* schedule, const Work* work, const Pipeline* other = nullptr, Recv* first = nullptr);

  // Number of steps done: all steps before this index.
  uint64_t steps_done() const { return head_ == tail_ ? next_step_ : flights_[head_ % window_].index; }

  // Moves every flight as far as possible. Sets *moved when something changed.
  // Errors: kMismatch or kProtocol of a slice, or a link's error; the pipeline then must not be used before the next
  // Start.
  Status Advance(bool* moved);

  // Whether something posted on that link is not complete, or failed.
  bool WaitsFor(const Endpoint* endpoint) const;

  // Rank that the first unfinished step waits for: first to receive from it, then to send to it. -1 for none.
  int AwaitedPeer() const;

  // Bytes that a pipeline with that window holds.
  static size_t MemoryBytes(int window) { return sizeof(Pipeline) + static_cast<size_t>(window) * sizeof(Flight); }

  bool done() const { return (schedule_ == nullptr || next_step_ == schedule_->size()) && head_ == tail_; }

 private:
  // What a step receives.
  struct Arrival {
    Endpoint* source = nullptr;  // Null, as is `recv`, when it receives nothing.
    Recv own;
    Recv* recv = nullptr;  // &own, or first_.
    bool posted = false;
    bool verified = false;
    bool complete = false;
    bool released = false;

    // Whether a slice that has started is where its receive wanted it.
    bool landed() const { return recv != nullptr && recv->landing != nullptr && recv->data == recv->landing; }
    bool is_over() const { return recv == nullptr || recv->code == Code::kOk; }
    bool waits() const { return posted && recv->code != Code::kOk; }
  };
  // What it does with the bytes, piece by piece. Nothing when it writes neither the output nor a slot.
  struct Pieces {
    bool write_output = false;
    Submission latest;
    size_t submitted = 0;  // Bytes of the pieces submitted so far.
    size_t finished = 0;   // Bytes whose result is in place.
  };
  // What it sends.
  struct Departure {
    Endpoint* target = nullptr;  // Null when it sends nothing.
    Send send;
    std::byte* slot = nullptr;   // Slot in which the pieces write what is sent; null: none.
    bool streams_slot = false;   // The slot is written past the caches.
    bool sends_arrival = false;  // The send reads the arrival's slot.
    bool posted = false;

    bool is_over() const { return target == nullptr || (posted && send.code == Code::kOk); }
    bool waits() const { return posted && send.code != Code::kOk; }
  };
  struct Flight {
    Step step;
    uint64_t index = 0;  // Index of the step.
    Arrival in;
    Pieces pieces;
    Departure out;
    bool planned = false;  // The memory that it reads and writes is chosen.
    bool done = false;
  };
  // Directions in which an earlier flight still has to post, so that later flights must wait.
  struct Order {
    bool receive_blocked = false;
    bool send_blocked = false;
  };

  void FillWindow(bool* moved);
  void Prepare(Flight* flight);
  Status AdvanceFlight(Flight* flight, Order* order, bool* moved);
  Status Receive(Flight* flight, Order* order, bool* moved);
  Status Plan(Flight* flight);
  Status PlanSend(Flight* flight);
  Status WorkOn(Flight* flight, bool* moved);
  Status SubmitPiece(Flight* flight, size_t end);
  Status Forward(Flight* flight, bool* moved);
  Status Retire(Flight* flight, bool* moved);
  bool UsesInput(const Flight& flight) const { return flight.in.recv == nullptr || flight.step.reduce; }
  bool Scales(const Step& step) const { return work_->custom.scales && !step.from_output; }
  Work::Place SourceAt(const Step& step, size_t offset) const {
    return step.from_output ? work_->OutputAt(step.output_offset + offset) : work_->InputAt(step.input_offset + offset);
  }
  // Memory of a device whose queue works on all of what the step receives; in host memory: the CPU has to, at least on
  // a part.
  Work::Place PlaceOfReader(const Step& step) const;
  bool MustAwait(const Step& step) const { return step.awaits > 0 && other_->steps_done() < step.awaits; }
  // Domain of the memory into which the flight's slice arrives: the output's, that of the device that reads it in the
  // peer's memory, or that of slots.
  DomainQueue* ArrivalQueue(const Flight& flight) const {
    if (flight.in.landed()) return work_->OutputAt(flight.step.output_offset).queue;
    return flight.in.recv != nullptr && flight.in.recv->on_device ? PlaceOfReader(flight.step).queue : nullptr;
  }
  Tag TagOf(const Step& step) const;

  const int channel_;
  const size_t window_;
  std::unique_ptr<Flight[]> flights_;
  const Schedule* schedule_ = nullptr;
  const Work* work_ = nullptr;
  const Pipeline* other_ = nullptr;
  Recv* first_ = nullptr;
  size_t next_step_ = 0;
  size_t head_ = 0;  // Flights in [head_, tail_), modulo window_.
  size_t tail_ = 0;
};

}  // namespace annulus
