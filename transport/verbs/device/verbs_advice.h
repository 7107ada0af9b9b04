// What can be done about an errno with which a device refuses something.
//
// Threads: plain functions.
#pragma once

#include <string>

namespace annulus {

// " (the limit on locked memory, ulimit -l, is 64 KiB: raise it ...)"; "" when there is nothing to say.
std::string VerbsAdvice(int os_errno);

}  // namespace annulus
