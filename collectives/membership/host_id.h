// HostId: shows whether two processes can share memory.
#pragma once

#include <string>

namespace annulus {

// Returns a name that is the same for processes under the same kernel and in the same network namespace. (The abstract
// UNIX sockets that pass shared memory do not reach beyond a namespace.) Falls back on the host's name.
std::string FindHostId();

}  // namespace annulus
