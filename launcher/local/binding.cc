#include "launcher/local/binding.h"

#include <algorithm>
#include <fstream>
#include <tuple>

namespace annulus {
namespace {

// The number that a file begins with: in a list such as "0,64" or "2-3" the first number, which is the lowest.
int ReadNumber(const std::string& path, int otherwise) {
  std::ifstream file(path);
  int number = 0;
  return file >> number ? number : otherwise;
}

}  // namespace

std::vector<Cpu> ReadTopology(const std::vector<int>& cpus, const std::string& folder) {
  std::vector<Cpu> found;
  for (const int cpu : cpus) {
    const std::string topology = folder + "/cpu" + std::to_string(cpu) + "/topology/";
    // Kernels before 5.3 have the core's list only under its former name.
    const int core = ReadNumber(topology + "core_cpus_list", ReadNumber(topology + "thread_siblings_list", cpu));
    found.push_back({cpu, core, ReadNumber(topology + "physical_package_id", 0)});
  }
  return found;
}

std::vector<std::vector<int>> SplitCores(std::vector<Cpu> cpus, int nranks) {
  std::vector<std::vector<int>> shares(nranks);
  // By package first, because some machines number their CPUs alternately across the sockets.
  std::ranges::sort(cpus, {}, [](const Cpu& cpu) { return std::tuple(cpu.package, cpu.core, cpu.number); });
  std::vector<std::vector<int>> cores;
  for (size_t i = 0; i < cpus.size(); ++i) {
    const bool next = i == 0 || cpus[i].core != cpus[i - 1].core || cpus[i].package != cpus[i - 1].package;
    if (next) cores.emplace_back();
    cores.back().push_back(cpus[i].number);
  }
  const size_t ranks = shares.size();
  if (ranks < 2 || cores.size() < ranks) return shares;
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = rank * cores.size() / ranks; i < (rank + 1) * cores.size() / ranks; ++i) {
      shares[rank].insert(shares[rank].end(), cores[i].begin(), cores[i].end());
    }
  }
  return shares;
}

std::vector<CpuMask> BindRanks(bool bind, int nranks) {
  std::vector<CpuMask> masks(nranks);
  if (!bind || nranks < 2) return masks;
  const std::vector<Cpu> cpus = ReadTopology(AllowedCpus(), "/sys/devices/system/cpu");
  const std::vector<std::vector<int>> shares = SplitCores(cpus, nranks);
  std::ranges::transform(shares, masks.begin(), MaskOf);
  return masks;
}

}  // namespace annulus
