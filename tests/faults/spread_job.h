// SpreadJob: three ranks on two hosts made of network namespaces, rank 0 on the first, 1 and 2 on the second, which sum
// over TCP until they are told to end. For tests of what paths between hosts may do. Needs root.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <string>

#include "tests/faults/hosts.h"
#include "tests/faults/rank_processes.h"

namespace annulus {

class SpreadJob {
 public:
  static constexpr int kRanks = 3;
  static constexpr int kPort = 29500;  // Of the rendezvous; nobody else is on these hosts.
  static constexpr Nanoseconds kPatience = 60 * kSecond;

  // Returns false, with the reason in *why, when there can be no hosts here.
  bool MakeHosts(std::string* why);
  // Starts the ranks, with `more` in their environment, and waits until they are at work.
  void Start(const RankProcesses::Environment& more);

  Hosts& hosts() { return *hosts_; }
  RankProcesses& ranks() { return *ranks_; }

  // Lets the job run for that long.
  void Work(Nanoseconds time);
  // Has the job end. No rank has a verdict.
  void ExpectGoodEnd();
  // All other ranks have the same verdict, which names `culprit`.
  void ExpectVerdictAbout(int culprit);
  // What all ranks have written.
  std::string Outputs() const;

 private:
  std::unique_ptr<Hosts> hosts_;
  std::unique_ptr<RankProcesses> ranks_;
};

}  // namespace annulus
