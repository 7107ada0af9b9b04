#include "transport/verbs/device/verbs_near.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

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

// The folder that `path` leads to; "" when there is none.
std::string RealFolder(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  return error ? "" : real.string();
}

int NumaNodeAt(const std::string& folder) {
  const std::string text = ReadTextFile(folder + "/numa_node");
  std::string_view left = text;
  return std::max(ReadNumber(&left), -1);
}

// The devices on the way from a host bridge, "pci0000:00", to the device of that folder, both included.
std::vector<std::string> WayTo(const std::string& folder) {
  std::vector<std::string> way;
  for (const auto& part : std::filesystem::path(folder)) {
    if (!way.empty() || part.string().starts_with("pci")) way.push_back(part.string());
  }
  return way;
}

}  // namespace

int NumaNodeOf(const ibv_device& device) { return NumaNodeAt(std::string(device.ibdev_path) + "/device"); }

VerbsDistance DistanceOf(const ibv_device& card, const std::string& pci_address) {
  // "/sys/class/infiniband/mlx5_0", and the other one is in "/sys/bus/pci/devices".
  const std::string path = card.ibdev_path;
  const size_t end = path.rfind("/class/infiniband/");
  if (end == std::string::npos || pci_address.empty()) return {};
  const std::string first = RealFolder(path + "/device");
  const std::string second = RealFolder(path.substr(0, end) + "/bus/pci/devices/" + pci_address);
  if (first.empty() || second.empty()) return {};
  const std::vector<std::string> one = WayTo(first);
  const std::vector<std::string> other = WayTo(second);
  const auto parts = std::ranges::mismatch(one, other).in1 - one.begin();
  if (parts > 1) return {false, "below one PCIe switch or port"};
  if (parts == 1) return {false, "below one PCIe host bridge"};
  const int node = NumaNodeAt(first);
  const int others = NumaNodeAt(second);
  if (node < 0 || others < 0) return {};
  if (node == others) return {false, "on NUMA node " + std::to_string(node) + " both"};
  return {true, "on NUMA nodes " + std::to_string(node) + " and " + std::to_string(others)};
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
