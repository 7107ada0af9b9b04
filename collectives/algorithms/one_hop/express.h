// Express: small allreduces and barriers among ranks that share memory, without slots, flights and schedules.
//
// Every rank sends all its elements to every other and folds for itself, in the order of the one-hop schedule
// (schedule.h), with the same tags: so it gives the same bits, and meets ranks that run that schedule in a pipeline. It
// spares them their bookkeeping, which for eight bytes is most of the time.
//
// Threads: one at a time. Nothing allocates after construction.
#pragma once

#include <array>
#include <vector>

#include "collectives/algorithms/pipeline.h"

namespace annulus {

class Express {
 public:
  // `links` outlives it, and has all it needs when there is a mesh.
  Express(int rank, int nranks, const Links* links, bool has_mesh);

  // Whether it serves what was planned.
  bool Takes(const ScheduleParams& params, const Work& work) const;

  // `work` stays valid until it is done.
  void Start(const ScheduleParams& params, const Work* work);
  // As Start, for work that differs from what was started last by its number and its buffers at most.
  void StartAgain();

  // How often Progress looks for slices. One that shares its core with the rank that it waits for looks but once.
  void set_polls(int polls) { polls_ = polls; }
  // Some 100 ns, what a line takes between distant cores.
  static constexpr int kPolls = 64;

  // Moves what can be moved, and polls for a moment. Errors: as Pipeline::Advance; the same again when called again.
  Status Progress(bool* moved);

  bool done() const { return unsent_ == 0 && missing_ == 0; }
  // The first peer that is waited for, -1 for none.
  int AwaitedPeer() const;
  // Whether a slice from that peer is still missing, or could not be sent.
  bool WaitsFor(const Endpoint* endpoint) const;

 private:
  struct Peer {
    int rank = 0;
    Endpoint* endpoint = nullptr;
    const std::byte* data = nullptr;  // What came from it.
    bool sent = false;
    bool came = false;
  };

  Status SendAll(bool* moved);
  Status ReceiveAll(bool* moved);
  Status Check(const Peer& peer, const Endpoint::ShortSlice& slice) const;
  void Finish();
  void Fold();

  const int rank_;
  const int nranks_;
  size_t most_bytes_ = 0;  // That all links take; 0: never.
  std::vector<Peer> peers_;
  const Work* work_ = nullptr;
  uint32_t bytes_ = 0;
  int polls_ = kPolls;
  bool polls_in_memory_ = true;  // Or by system calls.
  int unsent_ = 0;
  int missing_ = 0;
  std::array<const std::byte*, kMaxOneHopRanks> sources_{};  // By rank.
  std::array<const std::byte*, kMaxOneHopRanks> ordered_{};
};

}  // namespace annulus
