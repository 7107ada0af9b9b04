// Counts the system calls of a piece of work, whichever library makes them.
//
// Threads: the work runs on a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace annulus {

struct SystemCalls {
  uint64_t count = 0;
  std::string numbers;  // Numbers of the first few, as the kernel numbers them.
};

// `work` gets two functions: from the first on its system calls count, up to the second. It starts no threads. Nothing
// is returned where this kernel or processor cannot do it; the work has been done then, too.
std::optional<SystemCalls> CountSystemCalls(
    const std::function<void(std::function<void()>, std::function<void()>)>& work);

}  // namespace annulus
