// Links: the endpoints of a communicator, by peer and channel.
//
// A link whose connection breaks may have lost what its peer still waits for, although nothing under way here uses it:
// a send may complete before it arrives. So whoever drives the communicator and waits also tends such links.
//
// Threads: one at a time, the one that drives the communicator.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/closing.h"
#include "transport/transport.h"

namespace annulus {

class Links {
 public:
  Links(int nranks, int channels) : nranks_(nranks), table_(static_cast<size_t>(nranks) * channels) {}

  // How often links are tended: as often as those that their own runner waits for are looked at (TcpPulse::kLook).
  static constexpr Nanoseconds kTendEvery = 100 * kMillisecond;

  void Add(int peer, int channel, std::unique_ptr<Endpoint> endpoint) {
    table_[Index(peer, channel)] = endpoint.get();
    if (endpoint->limits().may_be_made_again) {
      tended_.push_back(endpoint.get());
      tend_at_ = 0;
    }
    owned_.push_back(std::move(endpoint));
  }

  // Null when the schedules need no such link.
  Endpoint* At(int peer, int channel) const { return table_[Index(peer, channel)]; }

  const std::vector<std::unique_ptr<Endpoint>>& all() const { return owned_; }

  // Has the links that may be made again notice what has broken, and mend it, whoever uses them. Their errors stick:
  // they are told to whoever needs such a link. What moves is not told either, so call it before, not after, the last
  // look at work under way that precedes a sleep.
  void Tend() {
    for (Endpoint* const endpoint : tended_) {
      // The first of the two is what looks for connections that have fallen silent.
      static_cast<void>(endpoint->Arm());
      bool moved = false;
      static_cast<void>(endpoint->Progress(&moved));
    }
  }
  // The same if it is time to, at time `now`.
  void TendWhenDue(Nanoseconds now) {
    if (now < tend_at_) [[likely]]
      return;
    Tend();
    // From here, so that the endpoints' own alarms, which they have just set, are over by then.
    tend_at_ = Now() + kTendEvery;
  }
  // When that is; kNoDeadline where there are no such links.
  Deadline tend_at() const { return tend_at_; }

  // Completes all pending work with kAborted. Takes as long as the slowest link, not the sum of all.
  void Close() { CloseEndpoints(owned_, lost_, until_); }
  // The same after a failure: nobody needs what is still on its way. This and later calls do not wait for the links to
  // `lost`, a peer that is known to be gone (-1: none), and for others only kAfterFailure.
  void Abandon(int lost) {
    if (lost >= 0) lost_ = lost;
    until_ = std::min(until_, DeadlineAfter(kAfterFailure));
    Close();
  }

 private:
  // What is acknowledged at once, by peers that live, is waited for.
  static constexpr Nanoseconds kAfterFailure = 250 * kMillisecond;

  size_t Index(int peer, int channel) const { return static_cast<size_t>(channel) * nranks_ + peer; }

  int nranks_;
  int lost_ = -1;
  Deadline until_ = kNoDeadline;
  std::vector<Endpoint*> table_;
  std::vector<std::unique_ptr<Endpoint>> owned_;
  std::vector<Endpoint*> tended_;  // Those that may be made again.
  Deadline tend_at_ = kNoDeadline;
};

}  // namespace annulus
