#include "collectives/algorithms/slice_tag.h"

#include "collectives/control/arbiter_text.h"

namespace annulus {
namespace {

constexpr uint64_t kSequenceMask = (uint64_t{1} << 40) - 1;

bool SameArguments(Call left, const Call& right) {
  left.sequence = right.sequence;
  return left == right;
}

// Explains why `arrived` is not the `expected` tag.
Status ExplainTag(const Tag& expected, const Tag& arrived, int peer) {
  const Call here = CallOf(expected);
  Call there = CallOf(arrived);
  const std::string from = "rank " + std::to_string(peer);
  if ((here.sequence & kSequenceMask) != there.sequence) {
    return {Code::kMismatch, from + " is in " + CallName(there) + " while this rank is in " + CallName(here), peer, 0};
  }
  if (IsMessage(here.kind) && (here.count != there.count || here.type != there.type)) {
    const auto size = [](const Call& call) { return std::to_string(call.count) + " of " + TypeName(call.type); };
    return {Code::kMismatch,
            "message #" + std::to_string(there.sequence) + " from " + from + " has " + size(there) +
                ", its receive asks for " + size(here),
            peer, 0};
  }
  const bool is_same_form = IsOfProgram(expected) == IsOfProgram(arrived);
  if (HasVariableParts(here.kind) && here.kind == there.kind && here.count != there.count && is_same_form) {
    return {Code::kMismatch,
            from + " called " + CallName(here) + " with a part of " + std::to_string(there.count) +
                " elements, for which this rank has " + std::to_string(here.count),
            peer, 0};
  }
  const bool is_alike = here.kind == there.kind && here.type == there.type && here.op == there.op;
  if (HasCommonCounts(here.kind) && is_alike && is_same_form && here.root != there.root)
    return {Code::kMismatch, from + " called " + CallName(here) + " with other counts than this rank", peer, 0};
  // With variable parts a program has no count that could be compared.
  if (!is_same_form && HasVariableParts(here.kind)) there.count = here.count;
  if (!SameArguments(here, there)) return {Code::kMismatch, Difference(from, there, "this rank", here), peer, 0};
  if (!is_same_form) {
    const std::string without = IsOfProgram(expected) ? from : "this rank";
    const std::string in_one = IsOfProgram(expected) ? "this rank" : from;
    return {Code::kMismatch, without + " made " + CallName(here) + " without a stream, and " + in_one + " in one", peer,
            0};
  }
  return {Code::kProtocol, from + " sent another slice of " + CallName(here) + " than its schedule says", peer, 0};
}

}  // namespace

Call CallOf(const Tag& tag) {
  Call call;
  call.sequence = tag.words[0] >> 24;
  call.kind = static_cast<CollectiveKind>(tag.words[0] >> 16 & 0xff);
  call.type = static_cast<DataType>(tag.words[0] >> 8 & 0xff);
  call.op = static_cast<ReduceOp>(tag.words[0] & 0xff);
  call.root = static_cast<int32_t>(tag.words[2] >> 32);
  call.count = tag.words[1];
  return call;
}

Status ExplainSlice(const SliceHead& expected, const SliceHead& arrived, int peer) {
  if (arrived.tag != expected.tag) return ExplainTag(expected.tag, arrived.tag, peer);
  return {Code::kProtocol,
          "rank " + std::to_string(peer) + " sent a slice of " + std::to_string(arrived.bytes) + " bytes where " +
              std::to_string(expected.bytes) + " belong",
          peer, 0};
}

}  // namespace annulus
