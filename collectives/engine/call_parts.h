// CallParts: where each rank's part of a call begins in the input and in the output, and how long it is. Kept between
// calls, so that filling it allocates nothing.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/core/collective.h"
#include "collectives/core/schedule.h"

namespace annulus {

// Positions of the ranks' parts in a buffer, in elements. Null counts: all parts have the call's count. Null offsets:
// each part follows the previous one.
struct Layout {
  const size_t* counts = nullptr;
  const size_t* offsets = nullptr;
};

class CallParts {
 public:
  explicit CallParts(int nranks) : input_(nranks), output_(nranks) {}

  // Bytes that it holds for `nranks` ranks.
  static size_t MemoryBytes(int nranks) { return 2 * static_cast<size_t>(nranks) * sizeof(Part); }

  // Fills both sides for `call` on `rank`. `own_count`: elements of the rank's own part, where it is the only one in
  // its buffer.
  void Fill(int rank, const Call& call, size_t own_count, const Layout& input, const Layout& output);

  // Whether a call of that kind and root, whose parts may differ, has the parts that were filled in last.
  bool AreOf(int rank, CollectiveKind kind, int root, size_t own_count, const Layout& input,
             const Layout& output) const;

  // By rank. Valid for the call that was filled in last, unless its kind has no such side.
  const Part* input() const { return input_.data(); }
  const Part* output() const { return output_.data(); }

 private:
  std::vector<Part> input_;
  std::vector<Part> output_;
};

}  // namespace annulus
