// The CPUs that a thread may run on, and masks of CPUs as the system accepts them, however many CPUs there are.
//
// Threads: any.
#pragma once

#include <sched.h>

#include <cstddef>
#include <vector>

namespace annulus {

// Sets for 1024 CPUs each, one after the other, as sched_setaffinity accepts them for any number of CPUs.
using CpuMask = std::vector<cpu_set_t>;

CpuMask MaskOf(const std::vector<int>& cpus);

// The numbers of the calling thread's CPUs, in order; none when the system does not report them. `first_sets`: size of
// the mask that is tried first; it grows as the system requires.
std::vector<int> AllowedCpus(size_t first_sets = 1);

}  // namespace annulus
