// WatchView: what annulus-run --watch makes of the ranks' boards: who waits for whom, who lags, as text.
//
// Threads: values and plain functions.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "collectives/observe/board.h"

namespace annulus {

// One rank at one moment.
struct RankView {
  bool joined = false;   // It has a communicator; the rest is zero otherwise.
  bool stopped = false;  // Its process is, by a signal.
  bool failed = false;
  uint64_t inside = Board::kNothing;
  uint64_t sequence = 0;
  uint64_t kind = 0;
  uint64_t count = 0;
  uint64_t moved_bytes = 0;
  Nanoseconds waited = 0;  // In all.
  Nanoseconds waits = 0;   // In the wait that goes on; 0: none does.
  int waiting_for = -1;
};

// Shorter waits are the normal course of things.
constexpr Nanoseconds kNotableWait = 100 * kMillisecond;

// Who keeps `rank` waiting in the end: the chain of waits is followed to a rank that does not wait, or is stopped. Of
// ranks that wait for each other, the one with the lowest call. -1 when `rank` does not wait, or for nobody.
int CulpritOf(const std::vector<RankView>& ranks, int rank);

struct WatchMoment {
  Nanoseconds at = 0;  // Since the job began.
  std::vector<RankView> ranks;
};

// Whether `rank` is behind what others had reached a moment ago already.
bool Lags(const WatchMoment& before, const WatchMoment& now, int rank);

// "2 ranks wait for rank 1, which is stopped (its last call: #7 allreduce)"; "" when nobody waits.
std::string Headline(const WatchMoment& now);

// All in one line, for a log.
std::string WatchLine(const WatchMoment& before, const WatchMoment& now);

// A table for a terminal of that size, a line for each rank that has room.
std::vector<std::string> WatchTable(const WatchMoment& before, const WatchMoment& now, int rows, int columns);

}  // namespace annulus
