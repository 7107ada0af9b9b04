// The size of the processor's last-level cache.
//
// Threads: any. Reads files: not for the data path.
#pragma once

#include <cstddef>
#include <string>

namespace annulus {

// Of this machine's first processor, as the kernel tells (/sys/devices/system/cpu). Not sysconf: on virtual machines it
// multiplies one cache by all those of the machine below (384 MiB where two virtual CPUs share 32). 32 MiB when
// unknown.
size_t LastLevelCacheBytes();

// The same from the folder of one processor's caches: "index0", "index1", ... with their "type", "level" and "size".
// 0 when nothing is found.
size_t LastLevelCacheBytes(const std::string& folder);

}  // namespace annulus
