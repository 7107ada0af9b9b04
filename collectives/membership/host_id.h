// HostId: tells whether two processes can share memory.
#pragma once

#include <string>

namespace annulus {

// A name that processes have in common when they run under the same kernel and in the same network namespace (abstract
// UNIX sockets, over which shared memory is handed, end at its border). Falls back on the host's name.
std::string FindHostId();

}  // namespace annulus
