// SpreadJob: three ranks on two hosts made of network namespaces, rank 0 on the first, the last on the second, which
// sum over TCP until they are told to end. For tests of what paths between hosts may do. Needs root.
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
  static constexpr int kPort = 29500;  // The port of the rendezvous; nobody else is on these hosts.
  static constexpr Nanoseconds kPatience = 60 * kSecond;

  // Returns false, with the reason in *why, when there can be no hosts here.
  bool MakeHosts(std::string* why);
  // Starts the ranks, the first `on_first_host` of them there, with `more` in their environment, as workers that act
  // like that, and waits until they are at work.
  void Start(const RankProcesses::Environment& more, int on_first_host = 1, const std::string& action = "until");

  Hosts& hosts() { return *hosts_; }
  RankProcesses& ranks() { return *ranks_; }

  // Lets the job run for that long.
  void Work(Nanoseconds time);
  // Has the job end. No rank has a verdict.
  void ExpectGoodEnd();
  // All other ranks have the same verdict, which names `culprit`.
  void ExpectVerdictAbout(int culprit);
  // All ranks have the same verdict: rank 0 and `rank` have lost each other.
  void ExpectLostPath(int rank);
  // What all ranks have written.
  std::string Outputs() const;

 private:
  std::unique_ptr<Hosts> hosts_;
  std::unique_ptr<RankProcesses> ranks_;
};

}  // namespace annulus
