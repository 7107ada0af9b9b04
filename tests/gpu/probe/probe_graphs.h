// The check of gpu_probe that concerns graphs: what calls that are captured take for granted about a GPU and its
// driver.
//
// Threads: one.
#pragma once

#include <string>

#include "tests/gpu/real_device.h"

namespace annulus {

// That copies, functions of the host, and writes of and waits for words can be captured; that each of `rounds` launches
// does them again, behind a gate that the GPU closes and the CPU opens by a store; that a store into the other half of
// the gate opens it for good; and that a user object goes with its graph. `driver`: the file that `device` was opened
// with. Returns "" or what is wrong.
std::string CheckGraphs(RealDevice* device, const std::string& driver, int rounds);

}  // namespace annulus
