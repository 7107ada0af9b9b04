#include "base/machine/machine_places.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/cpus.h"
#include "base/text_file.h"

namespace annulus {
namespace {

// Removes the number at the beginning of the text. Returns -1 when there is none.
int ReadNumber(std::string_view* text) {
  int number = -1;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, number);
  if (error != std::errc()) return -1;
  text->remove_prefix(static_cast<size_t>(stop - text->data()));
  return number;
}

// "0-3,8" as ranges; what is behind the first mistake is left out.
std::vector<std::pair<int, int>> RangesOf(std::string_view text) {
  std::vector<std::pair<int, int>> ranges;
  for (bool more = true; more;) {
    const int first = ReadNumber(&text);
    int last = first;
    if (first >= 0 && text.starts_with('-')) {
      text.remove_prefix(1);
      last = ReadNumber(&text);
    }
    if (first < 0 || last < first) break;
    ranges.emplace_back(first, last);
    more = text.starts_with(',');
    if (more) text.remove_prefix(1);
  }
  return ranges;
}

bool Has(const std::vector<std::pair<int, int>>& ranges, int number) {
  return std::ranges::any_of(ranges,
                             [number](const auto& each) { return number >= each.first && number <= each.second; });
}

// More than any machine has.
constexpr int kMostNodes = 1024;

// A switch is two bridges on the way, the port towards the processor and the one towards the device. So devices below
// one switch part at most so many steps before their ends.
constexpr size_t kStepsBelowASwitch = 2;

size_t SharedSteps(const MachinePlace& first, const MachinePlace& second) {
  return static_cast<size_t>(std::ranges::mismatch(first.way, second.way).in1 - first.way.begin());
}

}  // namespace

const char* NameOf(Nearness nearness) {
  switch (nearness) {
    case Nearness::kPix:
      return "PIX";
    case Nearness::kPxb:
      return "PXB";
    case Nearness::kPhb:
      return "PHB";
    case Nearness::kNode:
      return "NODE";
    case Nearness::kSys:
      return "SYS";
    case Nearness::kUnknown:
      break;
  }
  return "";
}

MachinePlace PlaceAt(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(folder, error);
  MachinePlace place;
  if (error) return place;
  for (const auto& part : real) {
    if (!place.way.empty() || part.string().starts_with("pci")) place.way.push_back(part.string());
  }
  const std::string text = ReadTextFile(real.string() + "/numa_node");
  std::string_view left = text;
  place.numa_node = std::max(ReadNumber(&left), -1);
  return place;
}

MachinePlace PlaceOfPciDevice(const std::string& pci_address, const std::string& sysfs) {
  return pci_address.empty() ? MachinePlace() : PlaceAt(sysfs + "/bus/pci/devices/" + pci_address);
}

Nearness NearnessOf(const MachinePlace& first, const MachinePlace& second) {
  const size_t shared = SharedSteps(first, second);
  const size_t steps = std::max(first.way.size(), second.way.size());
  if (shared > 1) return steps - shared <= kStepsBelowASwitch ? Nearness::kPix : Nearness::kPxb;
  if (shared == 1) return Nearness::kPhb;
  if (first.numa_node < 0 || second.numa_node < 0) return Nearness::kUnknown;
  return first.numa_node == second.numa_node ? Nearness::kNode : Nearness::kSys;
}

std::string NearnessText(const MachinePlace& first, const MachinePlace& second) {
  switch (NearnessOf(first, second)) {
    case Nearness::kPix:
      return "below one PCIe switch or port";
    case Nearness::kPxb:
      return "below several PCIe switches of one port";
    case Nearness::kPhb:
      return "below one PCIe host bridge";
    case Nearness::kNode:
      return "on NUMA node " + std::to_string(first.numa_node) + " both";
    case Nearness::kSys:
      return "on NUMA nodes " + std::to_string(first.numa_node) + " and " + std::to_string(second.numa_node);
    case Nearness::kUnknown:
      break;
  }
  return "";
}

int NumaNodeOfThisThread(const std::string& folder) {
  const std::vector<int> cpus = AllowedCpus();
  if (cpus.empty()) return -1;
  for (const auto& [first, last] : RangesOf(ReadTextFile(folder + "/online"))) {
    for (int node = first; node <= std::min(last, kMostNodes); ++node) {
      const auto its = RangesOf(ReadTextFile(folder + "/node" + std::to_string(node) + "/cpulist"));
      if (std::ranges::all_of(cpus, [&](int cpu) { return Has(its, cpu); })) return node;
    }
  }
  return -1;
}

}  // namespace annulus
