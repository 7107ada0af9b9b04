#include "collectives/calls/group.h"

#include <algorithm>
#include <cstdint>

namespace annulus {
namespace {

bool SameReduction(const CallArguments& left, const CallArguments& right) {
  return left.kind == CollectiveKind::kAllreduce && right.kind == CollectiveKind::kAllreduce &&
         left.type == right.type && left.op == right.op && left.created_op == right.created_op;
}

}  // namespace

std::vector<std::vector<Request*>> Bundles(std::vector<Request*> collected, const HasOwnOrderFunction& has_own_order) {
  std::vector<std::vector<Request*>> bundles;
  while (!collected.empty()) {
    const Request* const first = collected.front();
    const auto belongs = [&](const Request* each) {
      return each == first ||
             (each->options.priority == first->options.priority && SameReduction(each->arguments, first->arguments) &&
              has_own_order(each->arguments) == has_own_order(first->arguments));
    };
    const auto others = std::stable_partition(collected.begin(), collected.end(), belongs);
    bundles.emplace_back(collected.begin(), others);
    collected.erase(collected.begin(), others);
  }
  return bundles;
}

bool AreIndependent(const std::vector<Request*>& members) {
  struct Range {
    uintptr_t begin;
    uintptr_t end;
    bool written;
    const Request* request;
  };
  std::vector<Range> ranges;
  for (const Request* member : members) {
    const CallArguments& a = member->arguments;
    const size_t bytes = a.count * TypeBytes(a.type);
    const auto add = [&](const void* buffer, bool written) {
      const uintptr_t begin = reinterpret_cast<uintptr_t>(buffer);
      if (bytes > 0) ranges.push_back({begin, begin + bytes, written, member});
    };
    add(a.sendbuf, false);
    add(a.recvbuf, true);
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& left, const Range& right) { return left.begin < right.begin; });
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (size_t k = i + 1; k < ranges.size() && ranges[k].begin < ranges[i].end; ++k) {
      if ((ranges[i].written || ranges[k].written) && ranges[i].request != ranges[k].request) return false;
    }
  }
  return true;
}

}  // namespace annulus
