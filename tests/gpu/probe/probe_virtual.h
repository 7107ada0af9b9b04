// The checks of gpu_probe of the virtual memory API: what CudaPieces, CudaMappings and FilePost take for granted.
//
// Threads: one.
#pragma once

#include <string>

#include "tests/gpu/real_device.h"

namespace annulus {

// Why there is no such API on the device; "" when there is.
std::string VirtualMemoryMissing(RealDevice* device);
// What the driver says of mapped memory, which handles it gives, and what it refuses. Returns "" or what is wrong.
std::string CheckVirtualMemory(RealDevice* device);
// That another process, this program started as TakeFiles says, reads and writes memory of which it gets descriptors.
std::string CheckFilesOfMemory(RealDevice* device, const std::string& driver);
// The other process: takes a letter, whose address it prints, and works on the memory. Returns the exit status.
int TakeFiles(const std::string& driver, uint64_t from);

}  // namespace annulus
