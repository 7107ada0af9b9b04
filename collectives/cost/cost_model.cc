#include "collectives/cost/cost_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "collectives/core/rank_tree.h"

namespace annulus {
namespace {

int CeilLog2(int n) { return std::bit_width(static_cast<unsigned>(n) - 1U); }

// Time of the core for one message.
double WorkSeconds(double bytes, bool reduces, const LinkCosts& costs) {
  return costs.message_s + bytes * (costs.move_byte_s + (reduces ? costs.reduce_byte_s : 0));
}

// Time of one message from the sender's call to the receiver's result.
double HopSeconds(double bytes, bool reduces, const LinkCosts& costs) {
  return costs.latency_s + bytes * costs.byte_s + WorkSeconds(bytes, reduces, costs);
}

// The same when all ranks send at once, with cores that several ranks may share.
double StepSeconds(double bytes, bool reduces, const LinkCosts& costs) {
  return std::max(HopSeconds(bytes, reduces, costs), costs.ranks_per_core * WorkSeconds(bytes, reduces, costs));
}

// For the slices of a ring's chunk: the time of a phase of a round, and the time in which the slices of its last phase
// arrive.
//
// A phase sends `in_round` slices on each link. It cannot end before the link has carried them, nor before the core has
// worked on them. Its first slice is the one that arrived in the previous phase, one hop earlier. Each phase adds the
// longest of these times.
struct Phase {
  double period = 0;
  double end = 0;
};

Phase PhaseOf(double in_round, double slice, bool reduces, const LinkCosts& costs) {
  const double hop = HopSeconds(slice, reduces, costs);
  const double core = costs.ranks_per_core * WorkSeconds(slice, reduces, costs);
  const double each = std::max(slice * costs.byte_s, core);
  return {std::max(in_round * each, hop), std::max((in_round - 1) * each + hop, in_round * core)};
}

struct Rounds {
  double slice = 0;  // Bytes.
  double in_round = 0;
  double full = 0;
  double rest = 0;  // Slices of a last, incomplete round.
};

Rounds RoundsOf(int nranks, double bytes, const RingSlices& slices) {
  const double chunk = bytes / nranks;
  const double count = std::max(1.0, std::ceil(chunk / static_cast<double>(slices.slice_bytes)));
  const double in_round = std::min<double>(slices.round_slices, count);
  return {chunk / count, in_round, std::floor(count / in_round), std::fmod(count, in_round)};
}

// Time without the end of the last phase.
double PhasesSeconds(int phases, const Rounds& rounds, bool reduces, const LinkCosts& costs) {
  const double full = rounds.full * PhaseOf(rounds.in_round, rounds.slice, reduces, costs).period;
  const double rest = rounds.rest > 0 ? PhaseOf(rounds.rest, rounds.slice, reduces, costs).period : 0;
  return phases * (full + rest);
}

// Time of the last phase beyond a period.
double EndSeconds(const Rounds& rounds, bool reduces, const LinkCosts& costs) {
  const Phase last = PhaseOf(rounds.rest > 0 ? rounds.rest : rounds.in_round, rounds.slice, reduces, costs);
  return last.end - last.period;
}

}  // namespace

double HalfRingSeconds(int nranks, double bytes, const RingSlices& slices, const LinkCosts& costs, bool reduces) {
  if (nranks <= 1) return 0;
  const Rounds rounds = RoundsOf(nranks, bytes, slices);
  return PhasesSeconds(nranks - 1, rounds, reduces, costs) + EndSeconds(rounds, reduces, costs);
}

double RingSeconds(int nranks, double bytes, const RingSlices& slices, const LinkCosts& costs) {
  if (nranks <= 1) return 0;
  const Rounds rounds = RoundsOf(nranks, bytes, slices);
  return PhasesSeconds(nranks - 1, rounds, true, costs) + PhasesSeconds(nranks - 1, rounds, false, costs) +
         EndSeconds(rounds, false, costs);
}

double ChainSeconds(int nranks, double bytes, const RingSlices& slices, const LinkCosts& costs, bool reduces) {
  if (nranks <= 1) return 0;
  const double count = std::max(1.0, std::ceil(bytes / static_cast<double>(slices.slice_bytes)));
  const Phase phase = PhaseOf(1, bytes / count, reduces, costs);
  return (nranks - 1) * phase.end +
         (count - 1) *
             std::max(bytes / count * costs.byte_s, costs.ranks_per_core * WorkSeconds(bytes / count, reduces, costs));
}

double OneHopSeconds(int nranks, double bytes, const LinkCosts& costs) {
  if (nranks <= 1) return 0;
  const double messages = nranks - 1;
  const double link = messages * bytes * costs.byte_s;
  const double core = messages * WorkSeconds(bytes, true, costs);
  return costs.latency_s + std::max({link + WorkSeconds(bytes, true, costs), core + bytes * costs.byte_s,
                                     costs.ranks_per_core * core - costs.latency_s});
}

double TwoHopSeconds(int nranks, double bytes, const LinkCosts& costs) {
  if (nranks <= 1) return 0;
  const double messages = nranks - 1;
  const double chunk = bytes / nranks;
  const double core = messages * WorkSeconds(chunk, false, costs);
  return OneHopSeconds(nranks, chunk, costs) + costs.latency_s +
         std::max({messages * chunk * costs.byte_s, core, costs.ranks_per_core * core - costs.latency_s});
}

double LogGatherSeconds(int nranks, double bytes, const LinkCosts& costs) {
  if (nranks <= 1) return 0;
  double seconds = 0;
  for (int have = 1; have < nranks; have *= 2) {
    seconds += StepSeconds(bytes * std::min(have, nranks - have), false, costs);
  }
  return seconds + costs.ranks_per_core * bytes * (nranks - 1) * costs.reduce_byte_s;
}

double LogExchangeSeconds(int nranks, double bytes, const LinkCosts& costs) {
  if (nranks <= 1) return 0;
  double seconds = 0;
  for (int step = 1; step < nranks; step *= 2) {
    // The all-to-all's step 2^k sends the blocks whose distance has bit k set.
    int blocks = 0;
    for (int distance = 1; distance < nranks; ++distance) blocks += (distance & step) != 0;
    seconds += StepSeconds(bytes / nranks * blocks, false, costs);
  }
  seconds += costs.ranks_per_core * bytes * (nranks - 1) / nranks * costs.reduce_byte_s;
  return seconds + LogGatherSeconds(nranks, bytes / nranks, costs) -
         costs.ranks_per_core * bytes / nranks * (nranks - 1) * costs.reduce_byte_s;  // Nothing to fold there.
}

double RecursiveDoublingSeconds(int nranks, double bytes, const LinkCosts& costs) {
  if (nranks <= 1) return 0;
  // Ranks beyond the largest power of two pass their data to a partner first, and get the result from it in the end.
  const bool is_power = std::has_single_bit(static_cast<unsigned>(nranks));
  const int steps = is_power ? CeilLog2(nranks) : CeilLog2(nranks) - 1 + 2;
  return steps * StepSeconds(bytes, true, costs);
}

double HalvingDoublingSeconds(int nranks, double bytes, const LinkCosts& costs) {
  if (nranks <= 1) return 0;
  const bool is_power = std::has_single_bit(static_cast<unsigned>(nranks));
  const int steps = is_power ? CeilLog2(nranks) : CeilLog2(nranks) - 1;
  double seconds = is_power ? 0 : StepSeconds(bytes, true, costs) + StepSeconds(bytes, false, costs);
  double part = bytes / 2;
  for (int step = 0; step < steps; ++step, part /= 2) {
    seconds += StepSeconds(part, true, costs) + StepSeconds(part, false, costs);
  }
  return seconds;
}

double TreeSeconds(int nranks, double bytes, const LinkCosts& costs) {
  if (nranks <= 1) return 0;
  // Up and down. An inner rank takes from two children, half of the data each; as a leaf of the other tree it hands
  // over the other half: on each link 2 * bytes per direction in all, as slices of `slice` bytes of both trees.
  const int hops = 2 * CeilLog2(nranks);
  double best = 0;
  for (double slices = 1; slices <= 1 << 20; slices *= 2) {
    const double slice = bytes / 2 / slices;
    const double period =
        std::max(4 * slice * costs.byte_s,
                 costs.ranks_per_core * (2 * WorkSeconds(slice, true, costs) + 2 * WorkSeconds(slice, false, costs)));
    // The second child's slice follows the first one's.
    const double hop = StepSeconds(slice, true, costs) + slice * costs.byte_s + WorkSeconds(slice, true, costs);
    const double seconds = hops * hop + (slices - 1) * period;
    if (slices == 1 || seconds < best) best = seconds;
  }
  return best;
}

double SmallTreeSeconds(int nranks, double bytes, const LinkCosts& costs) {
  if (nranks <= 1) return 0;
  // The deepest rank has no zero digit; rank 0 takes its children's messages in turn.
  int levels = 0;
  for (int64_t ones = 1; ones < nranks; ones = ones * kTreeRadix + 1) ++levels;
  int messages = 0;
  for (int64_t weight = 1; weight < nranks; weight *= kTreeRadix) {
    messages += static_cast<int>(std::min<int64_t>(kTreeRadix, (nranks + weight - 1) / weight)) - 1;
  }
  const double first_child = levels * (HopSeconds(bytes, true, costs) + HopSeconds(bytes, false, costs));
  const double other = std::max(bytes * costs.byte_s, WorkSeconds(bytes, true, costs));
  const double core = costs.ranks_per_core / nranks * (nranks - 1) *
                      (WorkSeconds(bytes, true, costs) + WorkSeconds(bytes, false, costs));
  return std::max(first_child + 2 * (messages - levels) * other, core);
}

double TwoLevelSeconds(const TwoLevelShape& shape, double bytes, const RingSlices& slices, const LinkCosts& inner,
                       const LinkCosts& outer) {
  LinkCosts shared = outer;
  shared.byte_s *= shape.outer_sharing;
  return HalfRingSeconds(shape.group_size, bytes, slices, inner, true) +
         RingSeconds(shape.groups, bytes / shape.group_size, slices, shared) +
         HalfRingSeconds(shape.group_size, bytes, slices, inner, false);
}

int BestGroupSize(int nranks, double bytes, const RingSlices& slices, const LinkCosts& costs) {
  int best = 1;
  double least = RingSeconds(nranks, bytes, slices, costs);
  for (int size = 2; size < nranks; ++size) {
    if (nranks % size != 0) continue;
    const double seconds = TwoLevelSeconds({nranks / size, size, 1}, bytes, slices, costs, costs);
    if (seconds < least) {
      least = seconds;
      best = size;
    }
  }
  return best;
}

}  // namespace annulus
