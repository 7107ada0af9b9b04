// Launchers: rank, size and rendezvous from the environment that torchrun, horovodrun, mpirun or srun set.
//
// docs/launchers.md lists the variables, and which launcher goes first when several have left theirs.
//
// Threads: plain functions; ReadLauncher reads /proc for MPICH alone.
#pragma once

#include <string>

#include "base/options.h"
#include "base/status.h"

namespace annulus {

// Fills in those of rank, size, local_rank, local_size, rendezvous and launcher that `options` does not have yet. When
// it has rank and size, the ranks are complete and no launcher is asked for them. No launcher is no error.
//
// Errors: kInvalidArgument  names the variable that is wrong, or missing beside
// one that is set.
Status ReadLauncher(const EnvironmentLookup& lookup, Options* options);

// The number at `node` in Slurm's compressed list, "4(x2),3": 4, 4, 3. False when the list is broken or too short.
bool SlurmTasksAtNode(const std::string& tasks_per_node, int64_t node, int64_t* tasks);

// The first host of Slurm's "node[01-04,7],x": node01. False when the list is broken.
bool SlurmFirstHost(const std::string& node_list, std::string* host);

// A port that all ranks of a job derive from what names the job: from 20000 to 31999, below the range from which Linux
// takes the ports of outgoing connections (32768 and up, ip_local_port_range).
int DerivedPort(const std::string& job);

// Names the nearest ancestor process called `name`, such that no other process ever has that name: its pid and start
// time. "" when there is none.
std::string AncestorNamed(const std::string& name);

}  // namespace annulus
