// VerdictNote: what a rank tells annulus-run before it fails: which rank its verdict names. So annulus-run can name the
// culprit when the ranks that lost it exit first.
//
// annulus-run passes one end of a socket to all of its ranks: ANNULUS_VERDICTS=DESCRIPTOR:INODE:RANK. A note is one
// message. Nobody waits: a note that finds no room is dropped.
//
// Threads: any.
#pragma once

#include <cstdint>

namespace annulus {

struct VerdictNote {
  // Some other rank; its number in the job is not known.
  static constexpr int32_t kAnother = -1;

  int32_t rank = 0;  // The rank that tells.
  int32_t culprit = kAnother;
};

// Tells annulus-run that a verdict names `culprit`, or kAnother. `handed_down` is the value of ANNULUS_VERDICTS, null
// or empty when it is not set; a wrong value does no harm.
void SendVerdictNote(const char* handed_down, int32_t culprit);

}  // namespace annulus
