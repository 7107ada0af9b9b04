// The checks of gpu_probe that need a process of their own, in which gpu_probe runs once more: what a reset of the GPU
// leaves, launches that block, and memory that another process has opened by CUDA IPC. Each returns "" or what is
// wrong.
//
// Threads: one.
#pragma once

#include <string>

#include "tests/gpu/real_device.h"

namespace annulus {

// That a reset of the primary context can be told by cuCtxGetId, though the handle is the same, that it takes no memory
// of the process's own along, and that this can be pinned in the next context. Prints what the driver says meanwhile.
std::string CheckReset(const std::string& driver);
// That a kernel behind a gate, whose launch blocks (CUDA_LAUNCH_BLOCKING=1), begins when another thread has opened the
// gate, and then reads what that stored before. Prints whether the launch has blocked.
std::string CheckBlockedLaunch(const std::string& driver);
// That cuMemcpyAsync copies from memory that cuIpcOpenMemHandle has opened, to the GPU and to pinned memory.
std::string CheckCopiesOfOpened(RealDevice* device, const std::string& driver);

// The part of such a check that the other process does: gpu_probe DRIVER alone WHAT ARGUMENT. Its end is the process's.
int ProbeAlone(const std::string& driver, const std::string& what, const std::string& argument);

}  // namespace annulus
