// MonitoredBarrier: a barrier that names the ranks which do not come. It goes through the store, so that they leave the
// communicator as it is.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
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
  std::string Key(const char* what, int rank) const;
  // What rank 0 does, and what the others do.
  void PassOthers(c10d::Store& store, std::chrono::milliseconds limit, bool wait_all_ranks);
  void PassSelf(c10d::Store& store, std::chrono::milliseconds limit);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  std::vector<uint64_t> passed_;  // Number of barriers passed, by rank: on rank 0 all, elsewhere the own.
};

}  // namespace annulus_torch
