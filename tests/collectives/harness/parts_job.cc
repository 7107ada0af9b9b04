#include "tests/collectives/harness/parts_job.h"

#include <algorithm>

#include "collectives/reduce/reducer.h"

namespace annulus {
namespace {

constexpr size_t kGap = 3;  // Elements between parts, where there are gaps.

PartsSide MakeSide(bool many, bool used, const std::vector<size_t>& counts, int own, size_t gap) {
  PartsSide side{many, used, counts, {}, 0};
  if (!many) {
    side.elements = counts[own];
    return side;
  }
  for (size_t count : counts) {
    side.offsets.push_back(side.elements);
    side.elements += count + gap;
  }
  return side;
}

}  // namespace

size_t PartsJob::gap() const { return uniform() || !has_gaps ? 0 : kGap; }

size_t PartsJob::Own(int rank) const {
  const bool receives = IsScatter(call.kind) || IsReduceScatter(call.kind);
  return receives ? Recv(rank).counts[rank] : Send(rank).counts[rank];
}

PartsSide PartsJob::Send(int rank) const {
  const bool root = rank == call.root;
  const bool many = IsAlltoall(call.kind) || IsReduceScatter(call.kind) || (IsScatter(call.kind) && root);
  // An own part is the same whoever it goes to.
  const int to = IsGather(call.kind) ? call.root : 0;
  std::vector<size_t> parts = counts[rank];
  if (!many) parts.assign(n, counts[rank][to]);
  return MakeSide(many, !IsScatter(call.kind) || root, parts, rank, gap());
}

PartsSide PartsJob::Recv(int rank) const {
  const bool root = rank == call.root;
  const bool many = IsAlltoall(call.kind) || IsAllgather(call.kind) || (IsGather(call.kind) && root);
  const int from = IsScatter(call.kind) ? call.root : 0;
  std::vector<size_t> parts;
  for (int r = 0; r < n; ++r) parts.push_back(counts[many ? r : from][rank]);
  return MakeSide(many, !IsGather(call.kind) || root, parts, rank, gap());
}

Bytes PartsJob::Input(int rank) const { return MakeInput(call.type, Send(rank).elements, rank, 7); }

// Folds this rank's part of everyone's input.
Bytes PartsJob::Reduced(int rank) const {
  const size_t e = TypeBytes(call.type);
  Bytes sum;
  for (int k = 1; k <= n; ++k) {
    const int from = (rank + k) % n;
    const Bytes input = Input(from);
    const std::byte* part = input.data() + Send(from).begin(rank) * e;
    const size_t count = counts[from][rank];
    if (k == 1) {
      sum.assign(part, part + count * e);
      continue;
    }
    SliceOp op;
    op.dst[0] = sum.data();
    op.inline_src[0] = sum.data();
    op.inline_src[1] = part;
    op.num_sources = 2;
    op.count = count;
    op.type = call.type;
    op.op = call.op;
    RunOnHost(op);
  }
  return sum;
}

void PartsJob::Overlay(int rank, std::byte* output) const {
  const size_t e = TypeBytes(call.type);
  const PartsSide recv = Recv(rank);
  if (Reduces(call.kind)) {
    const Bytes sum = Reduced(rank);
    std::copy(sum.begin(), sum.end(), output);
    return;
  }
  for (int from = 0; from < n && recv.used; ++from) {
    if (IsScatter(call.kind) && from != call.root) continue;
    const Bytes input = Input(from);
    const std::byte* part = input.data() + Send(from).begin(rank) * e;
    std::copy(part, part + counts[from][rank] * e, output + recv.begin(from) * e);
  }
}

}  // namespace annulus
