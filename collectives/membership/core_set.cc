#include "collectives/membership/core_set.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/cpus.h"

namespace annulus {

CoreSet FindCores() {
  const std::vector<int> cpus = AllowedCpus();
  CoreSet found;
  if (cpus.empty()) {  // A filter may refuse to tell.
    found.count = static_cast<uint32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
    return found;
  }
  found.count = static_cast<uint32_t>(cpus.size());
  found.digest = 14695981039346656037U;  // FNV-1a hash of their numbers.
  for (const int cpu : cpus) found.digest = (found.digest ^ static_cast<uint64_t>(cpu)) * 1099511628211U;
  return found;
}

}  // namespace annulus
