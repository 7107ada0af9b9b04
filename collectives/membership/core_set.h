// CoreSet: the cores on which a process may run, in the form its peers need.
//
// Threads: plain functions and values.
#pragma once

#include <compare>
#include <cstdint>

namespace annulus {

struct CoreSet {
  uint32_t count = 1;
  uint64_t digest = 0;  // Hash of the cores' numbers.
  auto operator<=>(const CoreSet&) const = default;
};

// Returns the cores of the calling thread.
CoreSet FindCores();

}  // namespace annulus
