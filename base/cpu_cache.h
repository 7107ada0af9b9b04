// The size of the processor's last-level cache.
//
// Threads: any. Reads files: not for the data path.
#pragma once

#include <cstddef>
#include <string>

namespace annulus {

// Size of the last-level cache of this machine's first processor, in bytes, as the kernel reports it
// (/sys/devices/system/cpu); 32 MiB when unknown. Does not use sysconf: on virtual machines that multiplies one cache
// by the number of caches of the host machine (384 MiB where two virtual CPUs share 32).
size_t LastLevelCacheBytes();

// The same from the folder of one processor's caches: "index0", "index1", ... with their "type", "level" and "size". 0
// when nothing is found.
size_t LastLevelCacheBytes(const std::string& folder);

}  // namespace annulus
