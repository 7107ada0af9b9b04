// Absences: the ranks whose control connection broke, and how long they may take to come back.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <map>
#include <optional>

#include "base/clock.h"

namespace annulus {

class Absences {
 public:
  struct Absence {
    int rank = 0;
    int os_errno = 0;  // 0: a reset.
  };

  // `ended`: it has ended its connection itself, and does not come back.
  void Begin(int rank, int os_errno, Deadline until, bool ended = false) { absent_[rank] = {os_errno, until, ended}; }
  void End(int rank) { absent_.erase(rank); }

  // The first time at which a rank has been away for too long; kNoDeadline when none is away.
  Deadline deadline() const {
    Deadline first = kNoDeadline;
    for (const auto& [rank, absent] : absent_) first = std::min(first, absent.until);
    return first;
  }

  // The last such time; 0 when none is away.
  Deadline latest() const {
    Deadline last = 0;
    for (const auto& [rank, absent] : absent_) last = std::max(last, absent.until);
    return last;
  }

  // Nobody may stay away for longer.
  void Shorten(Deadline until) {
    for (auto& [rank, absent] : absent_) absent.until = std::min(absent.until, until);
  }

  // Nobody has been away for too long before then.
  void Lengthen(Deadline until) {
    for (auto& [rank, absent] : absent_) absent.until = std::max(absent.until, until);
  }

  bool any_ended() const {
    return std::any_of(absent_.begin(), absent_.end(), [](const auto& entry) { return entry.second.ended; });
  }
  bool has(int rank) const { return absent_.contains(rank); }

  // Takes out a rank that has been away for too long; none when there is none.
  std::optional<Absence> TakeOverdue(Nanoseconds now) {
    const auto found =
        std::find_if(absent_.begin(), absent_.end(), [now](const auto& entry) { return now >= entry.second.until; });
    if (found == absent_.end()) return std::nullopt;
    const Absence absence{found->first, found->second.os_errno};
    absent_.erase(found);
    return absence;
  }

 private:
  struct Absent {
    int os_errno = 0;
    Deadline until = 0;
    bool ended = false;
  };
  std::map<int, Absent> absent_;  // By rank.
};

}  // namespace annulus
