// Counts what the calling thread takes from operator new, in every program that links this.
//
// Threads: each has its own count.
#pragma once

#include <cstddef>

namespace annulus {

size_t AllocationsOfThisThread();

}  // namespace annulus
