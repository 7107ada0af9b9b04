// Ranks: a job of real processes that a test may kill, stop and listen to.
//
// Threads: one.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/collectives/cluster.h"

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

class Ranks {
 public:
  using Environment = std::map<std::string, std::string>;

  // Starts one worker per rank with `environment` on top; `special` gets `special_arguments` instead of `arguments`.
  Ranks(int nranks, const Environment& environment, const std::vector<std::string>& arguments, int special = -1,
        const std::vector<std::string>& special_arguments = {});
  // Kills what is left.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // Waits until every rank has written `line`. False at the deadline.
  bool WaitForLine(const std::string& line, Deadline deadline);

  void Signal(int rank, int signal);

  // Waits for the verdict of every rank but `except`; those without one by the deadline are invalid.
  std::vector<WorkerVerdict> Verdicts(int except, Deadline deadline);

  // All that the rank has written so far, standard error included; for messages of failed tests.
  const std::string& output(int rank) const { return workers_[rank].output; }
  std::string rendezvous() const { return port_.address(); }

 private:
  struct Worker {
    pid_t pid = -1;
    int fd = -1;
    std::string output;
  };

  void Start(int rank, const Environment& environment, const std::vector<std::string>& arguments);
  // Reads what has come; false at the deadline or when nobody is left who could write.
  bool Read(Deadline deadline);
  WorkerVerdict Parse(int rank) const;

  ReservedPort port_;
  int nranks_;
  std::vector<Worker> workers_;
};

}  // namespace annulus
