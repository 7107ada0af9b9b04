// Communicator's groups: many allreduces as few.
#include <algorithm>

#include "collectives/communicator.h"

namespace annulus {
namespace {

Tensor TensorOf(const Arguments& a) {
  return {static_cast<const std::byte*>(a.sendbuf), static_cast<std::byte*>(a.recvbuf), a.count};
}

bool SameReduction(const Arguments& left, const Arguments& right) {
  return left.kind == CollectiveKind::kAllreduce && right.kind == CollectiveKind::kAllreduce &&
         left.type == right.type && left.op == right.op;
}

}  // namespace

Code Communicator::GroupStart() {
  std::lock_guard<std::mutex> lock(mu_);
  Code code = Code::kOk;
  if (Refused(&code)) return code;
  if (group_open_) {
    RecordRefusal(Status::Invalid("a group is open already; groups do not nest"));
    return Code::kInvalidArgument;
  }
  group_open_ = true;
  return Code::kOk;
}

Code Communicator::GroupEnd(Request** request) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!group_open_) {
    RecordRefusal(Status::Invalid("no group is open"));
    return Code::kInvalidArgument;
  }
  Code code = Code::kOk;
  if (!Refused(&code)) code = NeedProgressThread().code();
  group_open_ = false;
  if (code != Code::kOk) {
    for (Request* collected : std::exchange(group_, {})) {
      collected->queued = true;
      Finish(collected, code);
    }
    return code;
  }
  if (request != nullptr) {
    Request* const all = NewRequest(Arguments());
    all->unfinished = group_.size();
    for (Request* collected : group_) collected->group = all;
    if (group_.empty()) Finish(all, Code::kOk);
    *request = all;
  }
  QueueGroup();
  return Code::kOk;
}

// In the order in which each type and operation, or any other call, first appears: the same on all ranks.
void Communicator::QueueGroup() {
  while (!group_.empty()) {
    Request* const first = group_.front();
    const auto same = [first](Request* r) {
      return r == first || (r->priority == first->priority && SameReduction(r->arguments, first->arguments));
    };
    const auto others = std::stable_partition(group_.begin(), group_.end(), same);
    const std::vector<Request*> members(group_.begin(), others);
    group_.erase(group_.begin(), others);
    for (Request* member : members) member->queued = true;
    if (members.size() == 1) {
      Queue(first);
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
