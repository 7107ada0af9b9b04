#include "transport/verbs/device/verbs_near.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cpus.h"
#include "base/text_file.h"

namespace annulus {
namespace {

// Removes the number at the beginning of the text. Returns -1 when there is none.
int TakeNumber(std::string_view* text) {
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
    const int first = TakeNumber(&text);
    int last = first;
    if (first >= 0 && text.starts_with('-')) {
      text.remove_prefix(1);
      last = TakeNumber(&text);
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

}  // namespace

int NumaNodeOf(const ibv_device& device) {
  const std::string text = ReadTextFile(std::string(device.ibdev_path) + "/device/numa_node");
  std::string_view left = text;
  return std::max(TakeNumber(&left), -1);
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
