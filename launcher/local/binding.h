// Binding: which CPUs each rank of this host runs on (--bind-to). When two ranks wait for each other on one core while
// another core is idle, a small call takes many times as long.
//
// Threads: plain functions.
#pragma once

#include <string>
#include <vector>

#include "base/cpus.h"

namespace annulus {

struct Cpu {
  int number;
  int core;     // Lowest CPU number of its core (hyperthreads).
  int package;  // Number of the processor package (socket).
};

// What the kernel reports about these CPUs; a CPU that it does not describe counts as a core by itself. `folder` holds
// "cpu0", ...
std::vector<Cpu> ReadTopology(const std::vector<int>& cpus, const std::string& folder);

// Each rank's CPUs: whole neighbouring cores, whose number differs by at most one between ranks. All shares are empty
// when a rank would get no core, and for a single rank, which needs no share.
std::vector<std::vector<int>> SplitCores(std::vector<Cpu> cpus, int nranks);

// Masks for the ranks of this host, made of the CPUs that this process may use; empty masks where nothing is to be
// bound.
std::vector<CpuMask> BindRanks(bool bind, int nranks);

}  // namespace annulus
