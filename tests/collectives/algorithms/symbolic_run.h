// SymbolicRun: executes the schedules of all ranks on values that record which contributions went into them, and in
// which order.
//
// Four models of the links. Each asks for at least as much as the transports that it stands for:
//   kSlots       a send needs a free slot of the link, and completes at once; the slot is free again when the
//                receiver's step has done its work (shared memory);
//   kInPlace     as kSlots, but data from the input or a stored output is read where it is: such a send completes only
//                when the receiver's step has done its work. Sends of a link complete in order, and a slot is free only
//                once its send has completed (shared memory, everything registered; the one-hop exchange does not send
//                in place). As every send asks for what it would need either way, this stands for any mix of
//                registered and other memory, too;
//   kRendezvous  a send completes only when the receiver has posted the matching receive; a received slice that is to
//                be forwarded holds a receive slot until its own send has completed (TCP without socket buffers);
//   kMixed       kInPlace from even ranks, kRendezvous from odd ones (ranks of several hosts); of kTwoLevel, kInPlace
//                within hosts, kRendezvous between them. What is sent on to a
//                rendezvous is held where it arrived until it is sent; but the sum with data that arrived in place
//                takes a send slot of the link.
// Every rank keeps up to `window` steps in flight; receives and sends of a link direction keep their order. Steps leave
// the window from its head, when they are done and their sends complete.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/core/schedule.h"
#include "tests/collectives/harness/part_counts.h"

namespace annulus {

class SymbolicRun {
 public:
  enum class LinkModel { kSlots, kInPlace, kRendezvous, kMixed };
  // One element: the ranks whose contributions it holds, in the order of the fold, e.g. "1 2 0 "; a '/' marks finish.
  // For kinds that only move data, where it was in its rank's input instead: "1:7 ".
  using Element = std::string;
  using Buffer = std::vector<Element>;

  // `counts` is for kinds with parts: IsDirect ones, and, with one size per rank whatever the other end, those with
  // variable parts.
  SymbolicRun(const ScheduleParams& params, LinkModel model, int slots, int window, const PartCounts& counts = {});

  // kTwoLevel: a number for each rank, equal where ranks share a host. Its levels count as channels.
  void SetHosts(const std::vector<int>& host_of) { grid_hosts_ = host_of; }

  // Runs to the end. Returns "" or a description of the first broken rule (deadlock, wrong tag, leftover slice, ...).
  std::string Run(bool in_place, unsigned order_seed);

  const Buffer& output(int rank) const { return ranks_[rank].output; }
  const std::vector<Part>& input_parts(int rank) const { return ranks_[rank].input_parts; }
  const std::vector<Part>& output_parts(int rank) const { return ranks_[rank].output_parts; }

 private:
  struct Slice {
    uint32_t chunk;
    uint64_t slice;
    uint64_t count;
    uint64_t ticket;
    Buffer data;
  };
  struct Flight {
    Step step;
    uint64_t index = 0;
    bool received = false;
    bool executed = false;  // Its data is in place; a send, if any, is posted.
    bool sent = false;
    uint64_t ticket = 0;  // Ticket of the slice that arrived.
    bool arrived_in_place = false;
    bool sends_arrival = false;
    bool takes_slot = false;  // Whether its send takes a slot; rendezvous only.
    Buffer arrival;
  };
  // A send that occupies a slot.
  struct Lent {
    Flight* flight;  // Valid until completed.
    uint64_t ticket;
    const Element* place = nullptr;  // Location of data in place.
    bool completed = false;
    bool released = false;  // By the receiver.
  };
  struct Pipeline {
    std::shared_ptr<const Schedule> schedule;
    size_t next = 0;
    std::deque<Flight> flights;
    int held_slots = 0;
    uint64_t StepsDone() const { return flights.empty() ? next : flights.front().index; }
  };
  struct Rank {
    Buffer input;
    Buffer output;
    std::vector<Part> input_parts;
    std::vector<Part> output_parts;
    std::vector<uint64_t> round_ends;
    std::vector<Pipeline> pipelines;
    std::map<int, Buffer> held;
  };
  using Link = std::pair<std::pair<int, int>, int>;  // ((from, to), channel)

  // Whether sends from that rank on that channel complete when their receives are posted.
  bool IsRendezvous(int from, int channel) const {
    const bool is_mixed_rendezvous = params_.algorithm == Algorithm::kTwoLevel ? channel == 1 : from % 2 == 1;
    return model_ == LinkModel::kRendezvous || (model_ == LinkModel::kMixed && is_mixed_rendezvous);
  }
  void FillParts(int rank);
  void Fill(int rank, bool in_place);
  bool Advance(int rank, int channel);
  bool Receive(int rank, int channel, Flight* flight);
  bool Execute(int rank, int channel, Flight* flight);
  const Element* PlaceOf(int rank, const Step& step) const;
  void Post(int rank, const Link& link, Flight* flight);
  void Release(const Link& link, const Flight& flight);
  void Complete(const Link& link);
  void GiveBack(std::deque<Lent>* lent);
  void Fold(int rank, const Step& step);
  const Buffer& Input(int rank) const;
  // What the step sends or reduces with.
  const Element* Source(int rank, const Step& step) const;
  bool Finished() const;

  ScheduleParams params_;
  LinkModel model_;
  size_t slots_;
  size_t window_;
  PartCounts counts_;
  std::vector<int> grid_hosts_;
  bool in_place_ = false;
  std::string failure_;
  std::vector<Rank> ranks_;
  std::map<Link, std::deque<Slice>> links_;
  uint64_t next_ticket_ = 0;
  std::map<Link, std::deque<Lent>> lent_;       // Occupied slots, in order.
  std::map<Link, std::deque<Flight*>> unsent_;  // Rendezvous: posted sends, in order.
  std::map<Link, size_t> taken_;                // Rendezvous: number of send slots in use.
};

}  // namespace annulus
