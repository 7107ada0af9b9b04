// Siege: a job of real processes, and strangers (stray.cc) that a test sends to all of its doors.
//
// Threads: one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/faults/rank_processes.h"

namespace annulus {

class Siege {
 public:
  static constexpr Nanoseconds kPatience = 60 * kSecond;  // Only a bug takes that long, on whatever machine.
  static constexpr int kConnectTimeoutMs = 60000;

  // A job of which no rank runs yet; `more` is in the environment of all.
  Siege(int nranks, const std::string& transport, const RankProcesses::Environment& more = {});

  RankProcesses& ranks() { return ranks_; }

  // Starts a rank that works until it is told to end, or does what `arguments` tell (worker.cc).
  void Start(int rank, const RankProcesses::Environment& environment = {},
             const std::vector<std::string>& arguments = {"until"});

  // A stranger of this kind (stray.cc) for all ranks that run now. It lives as long as the siege.
  Child* Send(const std::string& kind);

  // Waits until the stranger has said `word`, and returns what followed.
  std::string Hear(Child* stray, const std::string& word);
  int HearNumber(Child* stray, const std::string& word);

  // Waits until the log of rank 0 tells of a connection that was dropped for this reason.
  void AwaitLogged(const std::string& reason);
  int Dropped(int rank, const std::string& reason);

  // The job works, listens only for ranks whose control connection breaks, and ends in order.
  void ExpectWorkAndEnd(int nranks);

  // What all ranks have written.
  std::string Outputs();

  // The path in this environment variable, of a program that the test starts.
  static std::string PathOf(const char* variable);

 private:
  RankProcesses ranks_;
  std::vector<std::unique_ptr<Child>> strays_;
};

}  // namespace annulus
