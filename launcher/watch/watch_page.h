// WatchPage: the boards of this machine's ranks, in memory that annulus-run allocates and the ranks write
// (collectives/observe/board.h).
//
// Threads: one.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/observe/board.h"
#include "launcher/watch/watch_view.h"

namespace annulus {

class WatchPage {
 public:
  WatchPage() = default;
  ~WatchPage();
  WatchPage(const WatchPage&) = delete;
  WatchPage& operator=(const WatchPage&) = delete;

  // Allocates the memory. Every process that is started from now on inherits its descriptor. Errors: kSystem.
  Status Make(int boards);

  // "ANNULUS_WATCH=..." for the rank of that board.
  std::string VariableOf(int board) const;

  // The state of all boards at `now`.
  std::vector<RankView> Read(Nanoseconds now) const;

 private:
  int fd_ = -1;
  int count_ = 0;
  void* memory_ = nullptr;
};

}  // namespace annulus
