#include "collectives/calls/fold_calls.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace annulus {
namespace {

// Of the buffer with a part for every rank.
const Layout& LayoutOf(const CallArguments& call) {
  return IsAllgather(call.kind) ? call.recv_layout : call.send_layout;
}

void AddRun(const FoldRun& run, std::vector<FoldRun>* runs) {
  if (run.count > 0) runs->push_back(run);
}

// The parts of an allgatherv or a reduce_scatterv.
void FillShape(const CallArguments& call, int rank, int nranks, FoldShape* shape) {
  const Layout& layout = LayoutOf(call);
  // The device only reads inputs.
  auto* const input = static_cast<std::byte*>(const_cast<void*>(call.sendbuf));
  auto* const output = static_cast<std::byte*>(call.recvbuf);
  const bool gathers = IsAllgather(call.kind);
  std::byte* const all = gathers ? output : input;
  const bool all_on_host = (gathers ? call.recv_queue : call.send_queue) == nullptr;
  size_t next = 0;
  for (int part = 0; part < nranks; ++part) {
    const size_t count = layout.counts[part];
    const size_t begin = layout.offsets != nullptr ? layout.offsets[part] : next;
    next = begin + count;
    shape->parts.push_back(count);
    AddRun({part, 0, count, all + begin * TypeBytes(call.type), all_on_host},
           gathers ? &shape->outputs : &shape->inputs);
  }
  const bool own_on_host = (gathers ? call.send_queue : call.recv_queue) == nullptr;
  AddRun({rank, 0, call.count, gathers ? input : output, own_on_host}, gathers ? &shape->inputs : &shape->outputs);
}

// What this rank sends and takes in an exchange.
void FillExchange(const CallArguments& call, int rank, int nranks, FoldShape* shape) {
  const auto fill = [&](Holding holding, const Layout& layout, const void* buffer, bool on_host,
                        std::vector<FoldRun>* runs) {
    auto* const memory = static_cast<std::byte*>(const_cast<void*>(buffer));
    if (holding == Holding::kOwn) AddRun({call.root, 0, call.count, memory, on_host}, runs);
    if (holding != Holding::kParts) return;
    size_t next = 0;
    for (int part = 0; part < nranks; ++part) {
      const size_t count = layout.counts[part];
      const size_t begin = layout.offsets != nullptr ? layout.offsets[part] : next;
      next = begin + count;
      if (count > 0) AddRun({part, 0, count, memory + begin * TypeBytes(call.type), on_host}, runs);
    }
  };
  const bool is_root = rank == call.root;
  fill(SendHolds(call.kind, is_root), call.send_layout, call.sendbuf, call.send_queue == nullptr, &shape->inputs);
  fill(RecvHolds(call.kind, is_root), call.recv_layout, call.recvbuf, call.recv_queue == nullptr, &shape->outputs);
}

}  // namespace

size_t FoldBytes(const CallArguments& call, int nranks) {
  const size_t element_bytes = TypeBytes(call.type);
  if (HasVariableParts(call.kind)) {
    const size_t* const counts = LayoutOf(call).counts;
    return std::accumulate(counts, counts + nranks, size_t{0}) * element_bytes;
  }
  FoldCall fold;
  fold.kind = call.kind;
  return call.count * element_bytes * (fold.has_parts() ? static_cast<size_t>(nranks) : 1);
}

size_t MeanFoldBytes(std::span<const CallArguments> calls, int nranks) {
  size_t bytes = 0;
  size_t folds = 0;
  std::vector<const CallArguments*> allreduces;  // The first of each type and operation, with which the others go.
  for (const CallArguments& call : calls) {
    bytes += FoldBytes(call, nranks);
    const auto takes_it = [&call](const CallArguments* first) {
      return first->type == call.type && first->op == call.op;
    };
    const bool is_allreduce = call.kind == CollectiveKind::kAllreduce;
    if (is_allreduce && std::ranges::any_of(allreduces, takes_it)) continue;
    if (is_allreduce) allreduces.push_back(&call);
    ++folds;
  }
  return folds == 0 ? 0 : bytes / folds;
}

FoldCall DescribeFold(std::span<Request* const> members, FoldShape* shape) {
  FoldCall fold;
  fold.kind = CollectiveKind::kAllreduceGroup;
  fold.type = members.front()->arguments.type;
  fold.op = members.front()->arguments.op;
  fold.shape = shape;
  for (const Request* const member : members) {
    const CallArguments& a = member->arguments;
    if (a.count == 0) continue;
    shape->tensors.push_back({static_cast<const std::byte*>(a.sendbuf), static_cast<std::byte*>(a.recvbuf), a.count,
                              a.send_queue == nullptr, a.recv_queue == nullptr});
  }
  return fold;
}

FoldCall DescribeFold(const CallArguments& call, int rank, int nranks, FoldShape* shape) {
  FoldCall fold;
  fold.kind = call.kind;
  fold.root = call.root;
  fold.type = call.type;
  fold.op = call.op;
  if (HasVariableParts(call.kind)) {
    IsFoldExchange(call.kind) ? FillExchange(call, rank, nranks, shape) : FillShape(call, rank, nranks, shape);
    fold.shape = shape;
    return fold;
  }
  fold.input = static_cast<const std::byte*>(call.sendbuf);
  fold.output = static_cast<std::byte*>(call.recvbuf);
  fold.count = call.count;
  fold.has_host_input = call.send_queue == nullptr && fold.input_parts(rank, nranks) > 0;
  fold.has_host_output = call.recv_queue == nullptr && fold.output_parts(rank, nranks) > 0;
  return fold;
}

}  // namespace annulus
