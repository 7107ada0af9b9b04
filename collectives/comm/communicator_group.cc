// Communicator's groups: many allreduces as few.
#include <algorithm>

#include "collectives/comm/communicator.h"

namespace annulus {
namespace {

Tensor TensorOf(const CallArguments& a) {
  return {static_cast<const std::byte*>(a.sendbuf), static_cast<std::byte*>(a.recvbuf), a.count};
}

bool SameReduction(const CallArguments& left, const CallArguments& right) {
  return left.kind == CollectiveKind::kAllreduce && right.kind == CollectiveKind::kAllreduce &&
         left.type == right.type && left.op == right.op && left.created_op == right.created_op;
}

// Whether all may run at once: none writes what another uses.
bool Independent(const std::vector<Request*>& members) {
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

}  // namespace

Code Communicator::GroupStart() {
  std::lock_guard<std::mutex> lock(mu_);
  Code code = Code::kOk;
  if (MustNotStart(&code)) return code;
  if (group_open_) {
    RecordRefusal(Status::Invalid("a group is open already; groups do not nest"));
    return Code::kInvalidArgument;
  }
  group_open_ = true;
  return Code::kOk;
}

Code Communicator::GroupEnd(RequestHandle* request) {
  std::lock_guard<std::mutex> lock(mu_);
  Code code = Code::kOk;
  const bool refused = Refused(&code);
  if (!group_open_ && refused) return code;
  if (!group_open_) {
    RecordRefusal(Status::Invalid("no group is open"));
    return Code::kInvalidArgument;
  }
  if (!refused) code = NeedProgressThread().code();
  group_open_ = false;
  if (code != Code::kOk) {
    for (Request* collected : std::exchange(group_, {})) {
      collected->queued = true;
      Finish(collected, code);
    }
    return code;
  }
  if (request != nullptr) {
    Request* const all = NewRequest(CallArguments());
    all->unfinished = group_.size();
    for (Request* collected : group_) collected->group = all;
    if (group_.empty()) Finish(all, Code::kOk);
    *request = all->handle;
  }
  QueueGroup();
  return Code::kOk;
}

// In the order in which each type, operation and order of addition, or any other call, first appears: the same on all
// ranks.
void Communicator::QueueGroup() {
  while (!group_.empty()) {
    Request* const first = group_.front();
    const auto two_levels = [this](const CallArguments& a) {
      return TakesTwoLevels(engine_.choice(), a.op, a.count * TypeBytes(a.type));
    };
    const auto same = [&](Request* r) {
      return r == first || (r->priority == first->priority && SameReduction(r->arguments, first->arguments) &&
                            two_levels(r->arguments) == two_levels(first->arguments));
    };
    const auto others = std::stable_partition(group_.begin(), group_.end(), same);
    const std::vector<Request*> members(group_.begin(), others);
    group_.erase(group_.begin(), others);
    for (Request* member : members) member->queued = true;
    if (members.size() == 1 || !Independent(members)) {
      for (Request* member : members) Queue(member);
      continue;
    }
    std::vector<Tensor> tensors;
    for (Request* member : members) tensors.push_back(TensorOf(member->arguments));
    Request* const fused = NewRequest(first->arguments);
    fused->discarded = true;
    fused->priority = first->priority;
    fused->members = members;
    fused->segments.Assign(tensors, TypeBytes(first->arguments.type), nranks());
    fused->call = CallOf(first->arguments, nranks(), 0);
    fused->call.kind = CollectiveKind::kAllreduceGroup;
    fused->call.count = 0;
    for (const Tensor& tensor : tensors) fused->call.count += tensor.count;
    fused->call.root = static_cast<int32_t>(DigestOf(tensors) & 0x7fffffff);
    Queue(fused);
  }
}

}  // namespace annulus
