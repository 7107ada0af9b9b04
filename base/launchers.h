// Launchers: rank, size and rendezvous from the environment that torchrun, horovodrun, mpirun or srun set.
//
// docs/launchers.md lists the variables, and which launcher goes first when several have left theirs.
//
// Threads: plain functions; ReadLauncher reads /proc only for MPICH.
#pragma once

#include <functional>
#include <string>

#include "base/identity.h"
#include "base/settings.h"
#include "base/status.h"

namespace annulus {

// Position of a process in its job; -1 and "" mean unknown.
struct JobPlace : SettingValues {
  // Rank 0 sends a table of all ranks to each of them (collectives/membership/bootstrap_messages.h): some 7 GB in all
  // for so many. Twice as many would need four times that, and a start of a minute over 10 Gbit/s.
  static constexpr int64_t kMostRanks = 4096;

#define ANNULUS_SETTING(name, Type, unset, ...) Type name = unset;
#include "base/job_settings.inc"
#undef ANNULUS_SETTING

  // Number of times that the launcher has restarted the run; 0 with a run_id of the user's.
  int64_t restart = 0;

  // Why ranks left over from another start of the job cannot be told from this one's with certainty: a sentence without
  // its end, about the launcher; "" where they can, or where nobody but the user names the run.
  std::string run_doubt;

  // Source of rank and size, for the log: "torchrun", "Open MPI", "the ANNULUS_* variables"; "" when unknown. A program
  // that gives both itself sets it before ReadLauncher.
  std::string launcher;
};

// Returns a variable's value, or null when it is not set.
using EnvironmentLookup = std::function<const char*(const char* variable)>;

// Fills in the fields that `place` does not have yet. When `place` has rank and size, the ranks are complete and no
// launcher is asked for them. The absence of a launcher is not an error.
//
// Errors: kInvalidArgument  names the variable that is wrong, or missing beside one that is set.
Status ReadLauncher(const EnvironmentLookup& lookup, JobPlace* place);

// The run to which this process belongs: that of ANNULUS_RUN_ID, else the launcher's; empty when neither names one.
// Also for programs that set rank and size themselves.
JobRun ReadRun(const EnvironmentLookup& lookup);

// The number at `node` in Slurm's compressed list, "4(x2),3": 4, 4, 3. False when the list is broken or too short.
bool SlurmTasksAtNode(const std::string& tasks_per_node, int64_t node, int64_t* tasks);

// The first host of Slurm's "node[01-04,7],x": node01. False when the list is broken.
bool SlurmFirstHost(const std::string& node_list, std::string* host);

// A port that all ranks derive from `job`, which identifies their job: from 20000 to 31999, below the range from which
// Linux takes the ports of outgoing connections (32768 and up, ip_local_port_range).
int DerivedPort(const std::string& job);

// The pid and start time of the nearest ancestor process called `name`, a pair that no other process ever has. "" when
// there is none.
std::string AncestorNamed(const std::string& name);

}  // namespace annulus
