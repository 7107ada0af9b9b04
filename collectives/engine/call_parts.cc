#include "collectives/engine/call_parts.h"

namespace annulus {
namespace {

// Where a part begins for which the layout says `begin`: the place of an empty one may be outside the buffer, which may
// be null.
size_t BeginOf(size_t begin, size_t elements) { return elements > 0 ? begin : 0; }

// Parts by rank, according to the layout.
void FillFromLayout(const Layout& layout, size_t count, std::vector<Part>* parts) {
  size_t next = 0;
  for (size_t rank = 0; rank < parts->size(); ++rank) {
    Part& part = (*parts)[rank];
    part.elements = layout.counts != nullptr ? layout.counts[rank] : count;
    part.begin = BeginOf(layout.offsets != nullptr ? layout.offsets[rank] : next, part.elements);
    next += part.elements;
  }
}

// A buffer with one part only, whichever rank it is for.
void FillWhole(size_t elements, std::vector<Part>* parts) { parts->assign(parts->size(), {0, elements}); }

// Whether FillFromLayout would change nothing. Layouts without counts are no valid ones here.
bool Matches(const Layout& layout, const std::vector<Part>& parts) {
  if (layout.counts == nullptr) return false;
  size_t next = 0;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (layout.counts[rank] != parts[rank].elements) return false;
    const size_t begin = layout.offsets != nullptr ? layout.offsets[rank] : next;
    if (BeginOf(begin, parts[rank].elements) != parts[rank].begin) return false;
    next += parts[rank].elements;
  }
  return true;
}

}  // namespace

void CallParts::Fill(int rank, const Call& call, size_t own_count, const Layout& input, const Layout& output) {
  const bool at_root = rank == call.root;
  if (IsGather(call.kind)) {
    FillWhole(own_count, &input_);
    if (at_root) FillFromLayout(output, call.count, &output_);
  } else if (IsScatter(call.kind)) {
    FillWhole(own_count, &output_);
    if (at_root) FillFromLayout(input, call.count, &input_);
  } else {
    FillFromLayout(input, call.count, &input_);
    FillFromLayout(output, call.count, &output_);
  }
}

bool CallParts::AreOf(int rank, CollectiveKind kind, int root, size_t own_count, const Layout& input,
                      const Layout& output) const {
  const Holding send = SendHolds(kind, rank == root);
  const Holding recv = RecvHolds(kind, rank == root);
  if (send == Holding::kParts && !Matches(input, input_)) return false;
  if (recv == Holding::kParts && !Matches(output, output_)) return false;
  if (send == recv) return true;
  const bool is_in_input = send == Holding::kParts || recv == Holding::kNothing;
  return (is_in_input ? input_ : output_)[static_cast<size_t>(rank)].elements == own_count;
}

}  // namespace annulus
