#include "collectives/calls/group.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace annulus {
namespace {

bool SameReduction(const CallArguments& left, const CallArguments& right) {
  return left.kind == CollectiveKind::kAllreduce && right.kind == CollectiveKind::kAllreduce &&
         left.type == right.type && left.op == right.op && left.created_op == right.created_op;
}

// Whether one request can have the options of both calls; null: none.
bool SameOptions(const CallOptions* left, const CallOptions* right) {
  static constexpr CallOptions kNone;
  const CallOptions& a = left != nullptr ? *left : kNone;
  const CallOptions& b = right != nullptr ? *right : kNone;
  const auto is_common = [](const CallOptions& options) {
    return options.done == nullptr && options.priority == 0 && !options.agree_first && !options.on_stream;
  };
  const bool same_label = a.label == b.label || (a.label != nullptr && b.label != nullptr &&
                                                 std::string_view(a.label) == std::string_view(b.label));
  return is_common(a) && is_common(b) && a.timeout == b.timeout && same_label;
}

// The memory that the allreduces of a group read and write.
class Ranges {
 public:
  explicit Ranges(size_t calls) {
    read_.reserve(calls);
    written_.reserve(calls);
  }

  void Add(const CallArguments& a) {
    const size_t bytes = a.count * TypeBytes(a.type);
    if (bytes == 0) return;
    const uintptr_t send = reinterpret_cast<uintptr_t>(a.sendbuf);
    const uintptr_t recv = reinterpret_cast<uintptr_t>(a.recvbuf);
    if (send != recv) read_.push_back({send, send + bytes, false, &a});
    written_.push_back({recv, recv + bytes, true, &a});
  }

  // Whether nothing that a call writes is used by another. Mostly, tensors come in the order of their addresses.
  bool AreIndependent() {
    for (std::vector<Range>* const each : {&read_, &written_}) {
      if (!std::is_sorted(each->begin(), each->end())) std::sort(each->begin(), each->end());
    }
    std::vector<Range> used(read_.size() + written_.size());
    std::merge(read_.begin(), read_.end(), written_.begin(), written_.end(), used.begin());
    for (size_t i = 0; i < used.size(); ++i) {
      for (size_t k = i + 1; k < used.size() && used[k].begin < used[i].end; ++k) {
        if ((used[i].written || used[k].written) && used[i].call != used[k].call) return false;
      }
    }
    return true;
  }

 private:
  struct Range {
    uintptr_t begin;
    uintptr_t end;
    bool written;
    const CallArguments* call;
    bool operator<(const Range& other) const { return begin < other.begin; }
  };
  std::vector<Range> read_;
  std::vector<Range> written_;
};

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

bool AreAlike(std::span<const CallArguments> calls) {
  const CallArguments& first = calls.front();
  return std::ranges::all_of(calls, [&first](const CallArguments& each) {
    return SameReduction(each, first) && SameOptions(each.options, first.options);
  });
}

bool AreIndependent(const std::vector<Request*>& members) {
  Ranges ranges(members.size());
  for (const Request* member : members) ranges.Add(member->arguments);
  return ranges.AreIndependent();
}

bool AreIndependent(std::span<const CallArguments> calls) {
  Ranges ranges(calls.size());
  for (const CallArguments& call : calls) ranges.Add(call);
  return ranges.AreIndependent();
}

}  // namespace annulus
