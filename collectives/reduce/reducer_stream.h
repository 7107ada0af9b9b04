// Stores past the caches, for data that this processor will not read again soon. They avoid reading each line before it
// is written, and leave the caches to data that needs them.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <cstddef>

namespace annulus {

// Copies by non-temporal stores where the machine has them, by plain stores elsewhere. Source and destination do not
// overlap.
void StreamBytes(std::byte* to, const std::byte* from, size_t bytes);

// Makes what this thread streamed before visible in memory before anything that it stores afterwards. A thread that
// publishes streamed data by a flag must call it first: a release store does not order non-temporal stores.
void FenceStreams();

}  // namespace annulus
