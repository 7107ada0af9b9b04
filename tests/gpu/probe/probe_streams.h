// The checks of gpu_probe that concern streams: what calls in the order of a stream take for granted about a GPU and
// its driver. Each returns "" or what is wrong.
//
// Threads: one.
#pragma once

#include <string>

#include "tests/gpu/real_device.h"

namespace annulus {

// That a stream waits for words which the CPU stores without a call of the driver, and has done what comes before them.
std::string CheckGates(RealDevice* device, int rounds);
// Prints whether giving memory back waits for a stream that waits at a gate.
std::string CheckFrees(RealDevice* device);
// That a stream waits for an event of another one, however the driver's queues are shared.
std::string CheckEvents(RealDevice* device, int rounds);
// That a kernel behind a gate begins when the gate is open, and then reads what others have written since it was
// launched.
std::string CheckGatedKernels(RealDevice* device, int rounds);
// What the driver says of streams: context, device and capture, of default streams too.
std::string CheckStreams(RealDevice* device);
// The median time from the CPU's store to a gate until it sees the word that the stream writes behind it; 0 when that
// failed.
double GateSeconds(RealDevice* device, int rounds);

}  // namespace annulus
