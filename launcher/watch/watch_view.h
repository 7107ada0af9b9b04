// WatchView: the ranks' boards as text for annulus-run --watch: which rank waits for which, and which lags.
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
  bool joined = false;   // Whether it has a communicator; if not, the rest is zero.
  bool stopped = false;  // Whether a signal has stopped its process.
  bool failed = false;
  uint64_t inside = Board::kNothing;
  uint64_t sequence = 0;
  uint64_t kind = 0;
  uint64_t count = 0;
  uint64_t moved_bytes = 0;
  Nanoseconds waited = 0;  // Total.
  Nanoseconds waits = 0;   // In the wait that is going on; 0: none is.
  int waiting_for = -1;
};

// Shorter waits are normal.
constexpr Nanoseconds kNotableWait = 100 * kMillisecond;

// The rank that `rank` is waiting for in the end: the chain of waits is followed to a rank that does not wait, or is
// stopped. Among ranks that wait for each other, it is the one with the lowest call. -1 when `rank` does not wait, or
// waits for nobody.
int CulpritOf(const std::vector<RankView>& ranks, int rank);

struct WatchMoment {
  Nanoseconds at = 0;  // Time since the job began.
  std::vector<RankView> ranks;
};

// Whether `rank` is behind what other ranks had already reached a moment ago.
bool Lags(const WatchMoment& before, const WatchMoment& now, int rank);

// The rank that was late in most of the calls since `before`, though perhaps never for long: all ranks went on, and it
// waited for less of the time than most others, by kLateShare or more. -1 when there is none.
constexpr double kLateShare = 0.1;
int LateEveryTime(const WatchMoment& before, const WatchMoment& now);

// "rank 2 is late again and again: it waited 3 % of the time, most others 45 % or more"; "" when no rank is.
std::string Habit(const WatchMoment& before, const WatchMoment& now);

// "2 ranks wait for rank 1, which is stopped (its last call: #7 allreduce)"; "" when nobody waits.
std::string Headline(const WatchMoment& now);

// All ranks in one line, for a log.
std::string WatchLine(const WatchMoment& before, const WatchMoment& now);

// A table for a terminal of that size, with a line for each rank that fits.
std::vector<std::string> WatchTable(const WatchMoment& before, const WatchMoment& now, int rows, int columns);

}  // namespace annulus
