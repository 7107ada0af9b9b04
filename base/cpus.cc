#include "base/cpus.h"

#include <algorithm>
#include <cerrno>

namespace annulus {
namespace {

constexpr size_t kMostSets = 1024;  // A million CPUs; Linux is built for at most 8192.

size_t BytesOf(const CpuMask& mask) { return mask.size() * sizeof(cpu_set_t); }

}  // namespace

CpuMask MaskOf(const std::vector<int>& cpus) {
  if (cpus.empty()) return {};
  const int last = *std::ranges::max_element(cpus);
  CpuMask mask(static_cast<size_t>(last) / CPU_SETSIZE + 1);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), BytesOf(mask), mask.data());
  return mask;
}

std::vector<int> AllowedCpus(size_t first_sets) {
  for (size_t sets = first_sets; sets <= kMostSets; sets = std::max<size_t>(1, 2 * sets)) {
    CpuMask mask(sets);
    if (sched_getaffinity(0, BytesOf(mask), mask.data()) != 0) {
      if (errno != EINVAL) return {};
      continue;  // The system's own masks are longer.
    }
    std::vector<int> cpus;
    for (size_t cpu = 0; cpu < sets * CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET_S(cpu, BytesOf(mask), mask.data())) cpus.push_back(static_cast<int>(cpu));
    }
    return cpus;
  }
  return {};
}

}  // namespace annulus
