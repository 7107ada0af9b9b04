// Inputs: crafted contributions of every rank whose exact reduction is known, for every type, operation and rank count.
//
// The values are small integers (and halves, for products) chosen so that every partial result is exact in the element
// type, whatever the order in which the ranks are folded; so results are compared bit by bit, with no tolerance.
// Averages are the exact sum divided once, as annulus.h states. They differ by rank, element and seed, and repeat after
// kPeriod elements: filling and checking are then as fast as copying, and since kPeriod is prime, data that landed a
// whole slice, page or power of two too far is seen all the same.
//
// Threads: plain functions and values.
#pragma once

#include <annulus.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus::perf {

inline constexpr size_t kPeriod = 65521;

// The first elements of a sequence that goes on for ever by repeating itself.
class Sequence {
 public:
  Sequence(std::vector<uint8_t> bytes, size_t element_bytes) : bytes_(std::move(bytes)), width_(element_bytes) {}

  // Writes elements [first, first + count) to `out`.
  void Fill(size_t first, size_t count, void* out) const;
  // Counts the elements of `data` that are not elements [first, first + count), bit by bit.
  int64_t CountDifferent(size_t first, size_t count, const void* data) const;

 private:
  std::vector<uint8_t> bytes_;
  size_t width_;
};

struct InputSpec {
  annulus_type_t type = ANNULUS_FLOAT32;
  annulus_op_t op = ANNULUS_SUM;
  int nranks = 1;
  uint64_t seed = 0;
  size_t elements = kPeriod;  // Shorter messages need only the start of the sequence; at most kPeriod is made.
};

// What `rank` contributes.
Sequence MakeInput(const InputSpec& spec, int rank);

// The reduction of all ranks' contributions.
Sequence MakeReduced(const InputSpec& spec);

}  // namespace annulus::perf
