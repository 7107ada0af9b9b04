// Binding: which CPUs each rank of this host runs on (--bind-to). Two ranks that wait for each other on one core while
// another is idle take many times as long for a small call.
//
// Threads: plain functions.
#pragma once

#include <string>
#include <vector>

#include "base/cpus.h"

namespace annulus {

struct Cpu {
  int number;
  int core;     // The lowest number among the CPUs of its core (hyperthreads).
  int package;  // The processor chip in its socket.
};

// What the kernel tells of these CPUs; one that it tells nothing of is a core by itself. `folder` holds "cpu0", ...
std::vector<Cpu> ReadTopology(const std::vector<int>& cpus, const std::string& folder);

// Each rank's CPUs: whole cores, next to each other, as many for each as for the others or one more. All shares are
// empty when a rank would get no core, and for a single rank, which needs none of its own.
std::vector<std::vector<int>> SplitCores(std::vector<Cpu> cpus, int nranks);

// Masks for the ranks of this host, of the CPUs that we may use ourselves; empty ones where nothing is to be bound.
std::vector<CpuMask> BindRanks(bool bind, int nranks);

}  // namespace annulus
