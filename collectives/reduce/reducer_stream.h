// Stores past the caches, for data that this processor will not read again soon: they spare the read of each line
// before it is written, and leave the caches to what needs them.
//
// Threads: all functions may be called from any thread.
#pragma once

#include <cstddef>

namespace annulus {

// Copies by non-temporal stores where the machine has them, plain ones elsewhere. The two do not overlap.
void StreamBytes(std::byte* to, const std::byte* from, size_t bytes);

// What this thread streamed before it is in memory before anything that it stores afterwards. Whoever publishes
// streamed data by a flag calls it first: a release store does not order non-temporal ones.
void FenceStreams();

}  // namespace annulus
