// What can be done about an errno with which a device refuses something.
//
// Threads: plain functions.
#pragma once

#include <cstdint>
#include <string>

namespace annulus {

// " (the limit on locked memory, ulimit -l, is 64 KiB, and the links need about 2300 KiB: raise it ...)"; "" when there
// is nothing to say. `needed_bytes`: of the links; 0: not known.
std::string VerbsAdvice(int os_errno, uint64_t needed_bytes);

}  // namespace annulus
