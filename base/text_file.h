// ReadTextFile: what the kernel or the system tells in a file.
//
// Threads: any.
#pragma once

#include <string>

namespace annulus {

// The whole content of a file, up to what could be read of it; empty, with errno set, when it cannot be opened. The
// descriptor is closed on exec, also by a process that another thread starts meanwhile; that of a std::ifstream is not.
std::string ReadTextFile(const std::string& path);

}  // namespace annulus
