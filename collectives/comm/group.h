// Group: the calls between annulus_group_start and annulus_group_end, and which of them may be done as one.
//
// Threads: the class from any, by a lock of its own; the functions keep nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "collectives/comm/request.h"

namespace annulus {

class Group {
 public:
  // Takes no lock.
  bool is_open() const { return is_open_.load(std::memory_order_relaxed); }

  // False when it is open already; groups do not nest.
  bool Open();
  // Collects a request, in the order of the calls. False when it is not open.
  bool Add(Request* request);
  // Requests collected so far.
  size_t size() const;
  // Hands out what was collected. False when it is not open.
  bool Close(std::vector<Request*>* collected);

 private:
  mutable std::mutex mu_;
  std::atomic<bool> is_open_{false};
  std::vector<Request*> collected_;
};

// Whether a call is done in two levels, which adds in another order: only calls that are alike in it go together.
using TakesTwoLevelsFunction = std::function<bool(const CallArguments&)>;

// The requests of a group, as they are to be queued: allreduces of one type, operation, priority and order of addition
// together, in the order in which the first of each appears; all other calls alone. The same on all ranks.
std::vector<std::vector<Request*>> Bundles(std::vector<Request*> collected, const TakesTwoLevelsFunction& two_levels);

// Whether the calls may run at once: none writes what another uses.
bool AreIndependent(const std::vector<Request*>& members);

}  // namespace annulus
