// HopLink: what one rank exchanges with one peer in an exchange of one or two hops: the items of the schedule
// (TwoHopSchedule), each way in order, some of them at a time.
//
// Threads: one at a time. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/algorithms/one_hop/hop_peer.h"
#include "collectives/algorithms/two_hop/two_hop_schedule.h"
#include "collectives/algorithms/work.h"

namespace annulus {

class HopLink {
 public:
  // Keeps up to `window` items under way each way; of an allreduce, more than the schedule's `ahead`.
  HopLink(int peer, Endpoint* endpoint, int window);

  // The schedule and the work stay valid until done.
  void Start(const TwoHopSchedule* schedule, const Work* work);

  // Sends what can be sent. The results of the first `folded` slices are in the output. Sets *moved when something
  // changed.
  Status Send(uint64_t folded, bool* moved);
  // Receives what can be received, and stores results. Errors: as of a link, kMismatch or kProtocol of a slice.
  Status Receive(bool* moved);

  // What the peer has sent for that slice of the own chunk, once all of it is there; null before. Valid until Release.
  const HopPeer* Arrival(uint64_t slice) const;
  // Gives back what Arrival has returned, if anything. Errors: kPeerLost when the peer gave up while its memory was
  // read in place.
  Status Release(uint64_t slice);

  bool has_received_all() const { return receives_.done(schedule_->items()); }
  bool done() const { return sends_.done(schedule_->items()) && has_received_all(); }
  // Whether something posted is not complete, or failed.
  bool waits() const;
  int peer() const { return peer_; }

  // Bytes that a link with that window holds.
  static size_t MemoryBytes(int window) { return sizeof(HopLink) + 2 * static_cast<size_t>(window) * sizeof(Flight); }

 private:
  struct Flight {
    explicit Flight(Endpoint* endpoint) : post(endpoint, true) {}
    HopPeer post;
    uint64_t slice = 0;
    bool is_held = false;  // Arrives for the fold.
    bool is_over = false;  // Sent, or received and given back.
  };
  // The items of one direction that are under way: [head, tail), in order.
  struct Way {
    Way(Endpoint* endpoint, int window) : flights(static_cast<size_t>(window), Flight(endpoint)) {}
    void Reset() { head = tail = next = 0; }
    bool is_full() const { return tail - head == flights.size(); }
    bool done(uint64_t items) const { return next == items && head == tail; }
    Flight& At(uint64_t index) { return flights[index % flights.size()]; }
    const Flight& At(uint64_t index) const { return flights[index % flights.size()]; }
    void DropOver() {
      while (head != tail && At(head).is_over) ++head;
    }

    std::vector<Flight> flights;
    uint64_t head = 0;
    uint64_t tail = 0;
    uint64_t next = 0;  // Item that comes after those under way.
  };

  const int peer_;
  const TwoHopSchedule* schedule_ = nullptr;
  const Work* work_ = nullptr;
  Way sends_;
  Way receives_;
};

}  // namespace annulus
