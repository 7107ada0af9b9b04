// MonitoredBarrier: a barrier that names the ranks which do not come. It goes through the store, so that they leave the
// communicator as it is.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace annulus_torch {

class MonitoredBarrier {
 public:
  MonitoredBarrier(c10::intrusive_ptr<c10d::Store> store, int rank, int size);

  // Returns when all ranks have called it. `wait_all_ranks`: rank 0 looks for every rank, not for the first missing one
  // only. Errors: throws after `limit`, in the words of PyTorch's own back end; rank 0 names who is missing.
  void Pass(std::chrono::milliseconds limit, bool wait_all_ranks);

 private:
  // A key of the rank's attempt.
  std::string Key(const char* what, int rank) const;
  bool HasGivenUp(c10d::Store& store, int rank) const;
  // Deletes keys of the rank's attempt, at which nobody looks any more.
  void Forget(c10d::Store& store, int rank, std::initializer_list<const char*> keys) const;
  // Whether the rank is there by then, in whichever attempt of its own.
  bool Arrives(c10d::Store& store, int rank, std::chrono::steady_clock::time_point deadline);
  // What rank 0 does, and what the others do.
  void PassOthers(c10d::Store& store, std::chrono::milliseconds limit, bool wait_all_ranks);
  void PassSelf(c10d::Store& store, std::chrono::milliseconds limit);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  std::vector<uint64_t> attempts_;  // Number of the attempt, by rank: on rank 0 all, elsewhere the own.
};

}  // namespace annulus_torch
