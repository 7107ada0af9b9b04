// Which devices are near the CPUs of a rank: on the same NUMA node.
//
// Threads: plain functions.
#pragma once

#include <infiniband/verbs.h>

#include <string>

namespace annulus {

// The device's NUMA node; -1: the system knows none.
int NumaNodeOf(const ibv_device& device);

// The NUMA node of all CPUs on which this thread may run; -1: there are several, or the system knows none. `folder`:
// where the system tells.
int NumaNodeOfThisThread(const std::string& folder = "/sys/devices/system/node");

}  // namespace annulus
