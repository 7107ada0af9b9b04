// ShortHop: one slice to each other rank and one from each, or fewer, over the short path of the links: without slots
// and posts. For eight bytes, bookkeeping would take most of the time.
//
// Threads: one at a time. Nothing allocates after construction.
#pragma once

#include <vector>

#include "collectives/algorithms/runner.h"
#include "collectives/algorithms/slice_tag.h"
#include "collectives/algorithms/work.h"
#include "collectives/core/schedule.h"

namespace annulus {

class ShortHop {
 public:
  // `links` outlives it, and has a link to each other rank on channel 0. `counts`: the slices are data, which the
  // monitor counts.
  ShortHop(int rank, int nranks, const Links* links, bool counts = true);

  // Bytes that it holds for each other rank.
  static constexpr size_t PeerBytes() { return sizeof(Peer); }

  // Largest slice that all links accept on the short path, in bytes; 0: some link has no short path.
  size_t most_bytes() const { return most_bytes_; }

  // Begins to exchange `bytes` of the work's input with all others, as that slice of the call. `work` stays valid until
  // the exchange is over.
  void Start(const Work* work, uint32_t bytes, uint64_t slice = 0);
  // Begins the sends and receives of a schedule whose steps 2k send to the rank k ahead and 2k + 1 receive from the
  // rank k behind, for k > 0: one slice each, which lies in one buffer of host memory.
  void Start(const Work* work, const Schedule& schedule);
  // As the latest Start, with the work's sequence and buffers of now.
  void StartAgain() {
    for (Peer& peer : peers_) {
      peer.sent = !peer.sends;
      peer.came = !peer.receives;
      peer.is_leaving = false;
    }
    unsent_ = num_sends_;
    missing_ = num_receives_;
    if (unsent_ == 0) MakeTag();
  }

  // Sends what can be sent where no system call is needed for it, but to wake a peer that sleeps. If it `looks`, and
  // the slices of the call before were there when they were first looked for, looks once for those of this one: else a
  // look would take from a peer the line that it is about to write. An error is returned by Progress.
  Awaits SendFirst(bool looks);
  // Sends what can be sent, and looks for slices for a moment. Errors: a link's, or CheckSlice's; later calls return
  // the same error.
  Status Progress(bool* moved);

  bool done() const { return unsent_ == 0 && missing_ == 0; }
  // Slice from the rank 1 + k ahead, if one was to come. Valid from done() to PopAll.
  const std::byte* data(size_t k) const { return peers_[k].data; }
  // Copies what has come to where the schedule stores it in the output.
  void StoreAll() const;
  void PopAll() {
    for (Peer& peer : peers_) {
      if (peer.receives) peer.short_path->Pop();
    }
  }
  // Whether everything sent has left. Where it has not, move the links before this is called again: a link that has
  // ended has nothing left to flush.
  bool Flush() {
    bool flushed = true;
    for (Peer& peer : peers_) {
      peer.is_leaving = !peer.short_path->Flush();
      flushed &= !peer.is_leaving;
    }
    return flushed;
  }

  // First peer that is waited for, -1 for none.
  int AwaitedPeer() const;
  // Whether a slice from that peer is still missing, or one to it could not be sent or has not left.
  bool WaitsFor(const Endpoint* endpoint) const;

 private:
  // A slice to a peer, or from it.
  struct Slice {
    size_t offset = 0;   // Where it lies in the input, or is stored in the output, in bytes.
    uint64_t count = 0;  // Elements that its tag names.
    uint32_t bytes = 0;
  };

  struct Peer {
    int rank = 0;
    Endpoint* endpoint = nullptr;
    ShortPath* short_path = nullptr;  // Null: most_bytes_ is 0.
    const std::byte* data = nullptr;  // Slice that arrived from it.
    Slice outgoing;
    Slice incoming;
    bool sends = false;       // Whether something is sent to it.
    bool receives = false;    // Whether it sends something.
    bool sent = false;        // Or nothing is to be sent.
    bool came = false;        // Or nothing is to come.
    bool is_leaving = false;  // What was sent had not left at the latest look.
  };

  void MakeTag() { own_tag_ = PackTag(work_->call, {static_cast<uint32_t>(rank_), slice_, 0}); }
  static bool IsAwaited(const Peer& peer) { return !peer.sent || !peer.came || peer.is_leaving; }
  Status SendAll(bool* moved);
  Status ReceiveAll(bool* moved);
  void Trace(TraceEvent::Kind kind, const Peer& peer, uint32_t bytes) const;

  const int rank_;
  const bool counts_;
  size_t most_bytes_ = 0;
  bool polls_in_memory_ = true;  // Otherwise polls are system calls.
  bool peers_lead_ = false;      // What was to come was there at the latest first look.
  std::vector<Peer> peers_;
  const Work* work_ = nullptr;
  uint64_t slice_ = 0;
  Tag own_tag_;
  int num_sends_ = 0;
  int num_receives_ = 0;
  int unsent_ = 0;
  int missing_ = 0;
};

}  // namespace annulus
