// RankProcesses: a job of real processes that a test may kill, stop and listen to.
//
// Threads: one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/faults/child.h"

namespace annulus {

// What a worker (tests/faults/worker.cc) says at its end.
struct WorkerVerdict {
  bool valid = false;
  int status = -1;
  int rank = -2;
  Nanoseconds at = 0;        // Monotonic time, which all processes of a host share.
  Nanoseconds ended_at = 0;  // When annulus_comm_destroy had returned.
  std::string message;
};

class RankProcesses {
 public:
  using Environment = Child::Environment;

  // A job of which no rank runs yet; `environment` is that of all.
  RankProcesses(int nranks, const Environment& environment);
  // Starts one worker per rank; `special` gets `special_arguments` instead of `arguments`.
  RankProcesses(int nranks, const Environment& environment, const std::vector<std::string>& arguments, int special = -1,
                const std::vector<std::string>& special_arguments = {});

  // `environment` comes on top of the job's. Once per rank.
  void Start(int rank, const std::vector<std::string>& arguments, const Environment& environment = {});

  // What a worker that pretends to be `rank` of this job finds in its environment.
  Environment EnvironmentOf(int rank) const;

  // Waits until every rank has written `line`. False at the deadline.
  bool WaitForLine(const std::string& line, Deadline deadline);

  void Signal(int rank, int signal) { workers_[rank]->Signal(signal); }

  // Waits for the verdict of every rank but `except`; those without one by the deadline are invalid.
  std::vector<WorkerVerdict> Verdicts(int except, Deadline deadline);

  Child& worker(int rank) { return *workers_[rank]; }
  // Those that were started.
  std::vector<Child*> workers() const;

  // All that the rank has written so far, standard error included; for messages of failed tests.
  const std::string& output(int rank) const { return workers_[rank]->output(); }
  int port() const { return port_.port(); }

 private:
  WorkerVerdict Parse(int rank) const;

  TestPort port_;
  const Environment environment_;
  std::vector<std::unique_ptr<Child>> workers_;
};

}  // namespace annulus
