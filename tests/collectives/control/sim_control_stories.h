// Stories of a job in virtual time: what its ranks do, and what all of them should be told.
//
// Threads: one.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tests/collectives/control/sim_control_job.h"

namespace annulus {

// When the collective's deadline passes.
constexpr Nanoseconds kCallDeadline = 100 * kMillisecond;
// When all ranks have entered it.
constexpr Nanoseconds kEntered = 1100 * kMicrosecond;

struct Story {
  const char* name;
  // Puts what happens on the clock.
  void (*tell)(SimControlJob* job);
  Code code;                       // OK: no verdict.
  int culprit;                     // From the end: 1 is the last rank; 0 is rank 0.
  Code also = code;                // What the arbiter may say of it as well.
  bool reports_deadlines = false;  // Rather than what is known at once.
};

std::span<const Story> Stories();

// "the median 0.123 s, the longest 1.234 s".
std::string TimesText(std::vector<Nanoseconds> times);

// All ranks finish their collective and leave, `step` apart.
void LeaveAll(SimControlJob* job, Nanoseconds step, bool judge_first);

// All ranks are in one collective for `time`, and leave at once.
void WorkAndLeave(SimControlJob* job, Nanoseconds time);

}  // namespace annulus
