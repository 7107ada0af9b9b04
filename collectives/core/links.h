// Links: the endpoints of a communicator, by peer and channel.
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

  void Add(int peer, int channel, std::unique_ptr<Endpoint> endpoint) {
    table_[Index(peer, channel)] = endpoint.get();
    owned_.push_back(std::move(endpoint));
  }

  // Null when the schedules need no such link.
  Endpoint* At(int peer, int channel) const { return table_[Index(peer, channel)]; }

  const std::vector<std::unique_ptr<Endpoint>>& all() const { return owned_; }

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
};

}  // namespace annulus
