// SimWorld: all ranks of a job in one process, one thread and virtual time, with failures on command.
//
//   SimWorld world({.seed = seed, .nranks = 4});
//   world.KillRank(2, 300 * kMicrosecond);
//   do {
//     ... drive every rank that runs(rank): Progress() of world.endpoint(rank, peer, channel), and what builds on it,
//     until none moves
//   } while (world.AdvanceToNextEvent());
//
// The same seed and the same calls give the same run. Order holds within one direction of a link, and nowhere else.
// Threads: one. The world outlives its endpoints and transports.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "transport/sim/sim_clock.h"
#include "transport/sim/sim_endpoint.h"
#include "transport/sim/sim_link.h"
#include "transport/transport.h"

namespace annulus {

// The kind of link that a world imitates.
enum class SimKind {
  kStream,  // TCP: sends from and lands in user memory; a byte stream with a bounded window.
  kSlots,   // Shared memory: slots only; a slot returns to its sender when the receiver releases it.
  kMixed,   // Each link is one of the two, chosen by the seed.
};

struct SimOptions {
  uint64_t seed = 1;
  int nranks = 2;
  SimKind kind = SimKind::kMixed;
  size_t slot_bytes = 4096;
  int slots = 4;  // Per direction of a link.
  Nanoseconds min_latency = kMicrosecond;
  Nanoseconds max_latency = 50 * kMicrosecond;  // Applies to control messages too.
  int64_t bytes_per_us = 1000;
  size_t window_bytes = 0;  // Per direction of a link; 0: chosen per link by the seed.
};

// Callbacks of a rank's control plane.
struct SimControl {
  // Receives one message, in the order of the sends from that rank.
  std::function<void(int from, std::string bytes)> message;
  // Called once per rank when that rank has died, after everything that it had sent.
  std::function<void(int rank)> closed;
};

class SimWorld {
 public:
  explicit SimWorld(const SimOptions& options);
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  const SimOptions& options() const { return options_; }
  Nanoseconds now() const { return clock_.now(); }
  SimClock& clock() { return clock_; }

  // Advances to the next event and runs it. Returns false when nothing is scheduled: nothing will move any more.
  bool AdvanceToNextEvent() { return clock_.RunNext(); }

  bool dead(int rank) const { return ranks_[rank].dead; }
  // Whether the rank is neither dead nor stopped. Drive it only then.
  bool runs(int rank) const { return !ranks_[rank].dead && !ranks_[rank].stopped; }

  // The end at `rank` of the link with `peer`, made at the first call and owned by the world.
  Endpoint* endpoint(int rank, int peer, int channel);
  // The same, owned by the caller. Call only one of the two functions for an end.
  std::unique_ptr<SimEndpoint> MakeEndpoint(int rank, int peer, int channel);
  bool HasEndpoint(int rank, int peer, int channel);

  // Faults. They happen at virtual time `at` and concern all channels between the two ranks that exist then.
  //
  // Both ends lose the link, as by a reset.
  void CutLink(int a, int b, Nanoseconds at);
  // Nothing arrives any more in either direction, and nobody is notified.
  void MuteLink(int a, int b, Nanoseconds at);
  // The next piece from `from` to `to` arrives damaged.
  void CorruptLink(int from, int to, Nanoseconds at);
  // Nothing arrives for `duration`; then everything does.
  void DelayLink(int a, int b, Nanoseconds at, Nanoseconds duration);
  // The process dies. Destroy what it ran before or after, but do not drive it: its requests are not touched any more.
  void KillRank(int rank, Nanoseconds at);
  // The process stops until ResumeRank; messages to it wait.
  void StopRank(int rank, Nanoseconds at);
  void ResumeRank(int rank, Nanoseconds at);

  // Control plane: messages of any size that arrive late and in order per pair of ranks. Messages from and to dead
  // ranks never arrive.
  void SetControl(int rank, SimControl control) { controls_[rank] = std::move(control); }
  void Send(int from, int to, std::string bytes);

 private:
  using LinkKey = std::tuple<int, int, int>;  // Lower rank, higher rank, channel.
  struct Notice {
    int from;
    bool closed;
    std::string bytes;
  };

  SimLink* LinkOf(int a, int b, int channel);
  SimLinkShape ShapeOfNextLink();
  template <class Act>
  void OnLinks(int a, int b, Nanoseconds at, Act act);
  void Die(int rank);
  void Carry(int to, Notice notice);
  void Deliver(int to, const Notice& notice);

  const SimOptions options_;
  SimClock clock_;
  std::vector<SimRank> ranks_;
  std::vector<SimControl> controls_;
  std::vector<std::vector<Notice>> waiting_;                // By rank: messages that arrived while it was stopped.
  std::map<std::pair<int, int>, Nanoseconds> last_notice_;  // By (from, to): arrival time of the latest message.
  std::map<LinkKey, std::unique_ptr<SimLink>> links_;
  std::map<std::tuple<int, int, int>, std::unique_ptr<SimEndpoint>> owned_;  // Last: endpoints go before links.
};

}  // namespace annulus
