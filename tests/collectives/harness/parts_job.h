// PartsJob: one collective whose buffers hold a part for every rank, as tests describe it: how much goes from whom to
// whom, where each part lies, and what must come out.
//
// Threads: values; const functions from any.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/core/collective.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/collectives/harness/part_counts.h"

namespace annulus {

// One side of a call on one rank: a part for every rank, or the own part alone.
struct PartsSide {
  bool many = false;
  bool used = true;
  std::vector<size_t> counts;
  std::vector<size_t> offsets;
  size_t elements = 0;

  size_t begin(int peer) const { return many ? offsets[peer] : 0; }
};

struct PartsJob {
  Call call;
  PartCounts counts;
  bool has_gaps = false;  // Between the parts, where the call takes offsets.
  int n = 1;

  bool uniform() const { return !HasVariableParts(call.kind); }
  // The layouts that the call gets: null where it takes none.
  const size_t* CountsOf(const PartsSide& side) const { return !uniform() && side.many ? side.counts.data() : nullptr; }
  const size_t* OffsetsOf(const PartsSide& side) const {
    return gap() > 0 && side.many ? side.offsets.data() : nullptr;
  }
  // Elements of the rank's own part, where it is the only one in its buffer.
  size_t Own(int rank) const;

  PartsSide Send(int rank) const;
  PartsSide Recv(int rank) const;
  Bytes Input(int rank) const;

  // Writes what `rank` must receive over `output`, which starts as what was there before.
  void Overlay(int rank, std::byte* output) const;

 private:
  size_t gap() const;
  Bytes Reduced(int rank) const;
};

}  // namespace annulus
