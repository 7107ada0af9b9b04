// CoreSet: the cores on which a process may run, as its peers need to know them.
//
// Threads: plain functions and values.
#pragma once

#include <compare>
#include <cstdint>

namespace annulus {

struct CoreSet {
  uint32_t count = 1;
  uint64_t digest = 0;  // Of which they are.
  auto operator<=>(const CoreSet&) const = default;
};

// Of the calling thread.
CoreSet FindCores();

}  // namespace annulus
