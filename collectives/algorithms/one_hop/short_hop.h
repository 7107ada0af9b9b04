// ShortHop: exchanges one slice with each other rank over the short path of the links, without slots, posts and
// schedules. For eight bytes, bookkeeping would take most of the time.
//
// Threads: one at a time. Nothing allocates after construction.
#pragma once

#include <vector>

#include "collectives/algorithms/slice_tag.h"
#include "collectives/algorithms/work.h"

namespace annulus {

class ShortHop {
 public:
  // `links` outlives it, and has a link to each other rank on channel 0. `counts`: the slices are data, which the
  // monitor counts.
  ShortHop(int rank, int nranks, const Links* links, bool counts = true);

  // Largest slice that all links accept on the short path, in bytes; 0: some link has no short path.
  size_t most_bytes() const { return most_bytes_; }

  // Begins to exchange `bytes` of the work's input, as that slice of the call. `work` stays valid until the exchange is
  // over.
  void Start(const Work* work, uint32_t bytes, uint64_t slice = 0);
  // As Start, for the same number of bytes.
  void StartAgain() {
    for (Peer& peer : peers_) peer.sent = peer.came = false;
    unsent_ = missing_ = static_cast<int>(peers_.size());
  }

  // Sends what can be sent where no system call is needed for it, but to wake a peer that sleeps. An error is returned
  // by Progress.
  void SendFirst();
  // Sends what can be sent, and looks for slices for a moment. Errors: a link's, or CheckSlice's; later calls return
  // the same error.
  Status Progress(bool* moved);

  bool done() const { return unsent_ == 0 && missing_ == 0; }
  // Slice from the rank 1 + k ahead. Valid from done() to PopAll.
  const std::byte* data(size_t k) const { return peers_[k].data; }
  void PopAll() {
    for (Peer& peer : peers_) peer.short_path->Pop();
  }
  // Whether everything sent has left.
  bool Flush() {
    bool flushed = true;
    for (Peer& peer : peers_) flushed &= peer.short_path->Flush();
    return flushed;
  }

  // First peer that is waited for, -1 for none.
  int AwaitedPeer() const;
  // Whether a slice from that peer is still missing, or one to it could not be sent.
  bool WaitsFor(const Endpoint* endpoint) const;

 private:
  struct Peer {
    int rank = 0;
    Endpoint* endpoint = nullptr;
    ShortPath* short_path = nullptr;  // Null: most_bytes_ is 0.
    const std::byte* data = nullptr;  // Slice that arrived from it.
    bool sent = false;
    bool came = false;
  };

  Status SendAll(bool* moved);
  Status ReceiveAll(bool* moved);

  const int rank_;
  const bool counts_;
  size_t most_bytes_ = 0;
  bool polls_in_memory_ = true;  // Otherwise polls are system calls.
  std::vector<Peer> peers_;
  const Work* work_ = nullptr;
  uint32_t bytes_ = 0;
  uint64_t slice_ = 0;
  Tag own_tag_;
  int unsent_ = 0;
  int missing_ = 0;
};

}  // namespace annulus
