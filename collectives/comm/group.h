// Group: the calls between annulus_group_start and annulus_group_end, and which of them can be combined.
//
// Threads: the class may be used from any thread and has its own lock; the functions hold no state.
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

  // Returns false when it is already open; groups do not nest.
  bool Open();
  // Collects a request, in the order of the calls. Returns false when the group is not open.
  bool Add(Request* request);
  // Number of requests collected so far.
  size_t size() const;
  // Returns the collected requests. Returns false when the group is not open.
  bool Close(std::vector<Request*>* collected);

 private:
  mutable std::mutex mu_;
  std::atomic<bool> is_open_{false};
  std::vector<Request*> collected_;
};

// Whether a call uses two levels, which add in another order. Only calls with the same order are combined.
using TakesTwoLevelsFunction = std::function<bool(const CallArguments&)>;

// Returns the requests of a group as they should be queued. Allreduces of one type, operation, priority and order of
// addition are combined, in the order in which the first of each appears; all other calls stay separate. The result is
// the same on all ranks.
std::vector<std::vector<Request*>> Bundles(std::vector<Request*> collected, const TakesTwoLevelsFunction& two_levels);

// Whether the calls may run at the same time: none writes what another uses.
bool AreIndependent(const std::vector<Request*>& members);

}  // namespace annulus
