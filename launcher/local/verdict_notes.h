// VerdictNotes: receives what the ranks of this host tell about their verdicts (collectives/observe/verdict_note.h).
//
// Threads: one.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace annulus {

class VerdictNotes {
 public:
  VerdictNotes();
  VerdictNotes(const VerdictNotes&) = delete;
  VerdictNotes& operator=(const VerdictNotes&) = delete;
  ~VerdictNotes();

  // Adds ANNULUS_VERDICTS for `rank` to the environment of its process, unless there is no socket: then the job runs
  // without notes.
  void AddVariable(int rank, std::vector<std::string>* environment) const;

  // The rank that the verdict of `rank` names; Failure::kNobody when it has reported none, Failure::kAnother when
  // it does not know the number.
  int BlamedBy(int rank);

 private:
  void Read();

  int reader_ = -1;
  int writer_ = -1;            // Inherited by the ranks.
  std::map<int, int> blamed_;  // By rank; the first note of each.
};

}  // namespace annulus
