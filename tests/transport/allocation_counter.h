// Counts what the calling thread takes from operator new and aligned_alloc, in every program that links this, and lets
// it fail.
//
// Threads: each has its own count; one at a time exhausts the others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace annulus {

size_t AllocationsOfThisThread();

// From now on this thread's allocation of that number, from 1, throws std::bad_alloc; those that may return null do not
// count.
void FailAllocation(size_t number);
// Ends this. Returns whether the allocation was made.
bool StopFailing();

// From now on, of all other threads' allocations together, the one of that number, from 1, fails, and so do those that
// follow, `count` in all.
void ExhaustOthers(size_t number, size_t count = SIZE_MAX);
// Ends this. Returns whether one has failed.
bool StopExhausting();

}  // namespace annulus
