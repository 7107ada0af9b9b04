// The CPUs on which a thread may run, and masks of CPUs as the system takes them, however many CPUs there are.
//
// Threads: any.
#pragma once

#include <sched.h>

#include <cstddef>
#include <vector>

namespace annulus {

// Sets for 1024 CPUs each, one after the other: as sched_setaffinity takes them, for any number of CPUs.
using CpuMask = std::vector<cpu_set_t>;

CpuMask MaskOf(const std::vector<int>& cpus);

// The numbers of the calling thread's CPUs, in order; none when the system does not tell. `first_sets`: the size of the
// mask that is tried first; it grows as the system asks for.
std::vector<int> AllowedCpus(size_t first_sets = 1);

}  // namespace annulus
