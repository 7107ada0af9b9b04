// The lengths of the parts of an array, one for each rank, where they differ.
//
// Threads: only with Python's global lock (GIL).
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <vector>

namespace annulus_python {

// Reads a plain integer of Python's, from 0 to the largest int. Returns false for anything else.
bool NumberOf(PyObject* given, int* number);

class PartCounts {
 public:
  PartCounts() = default;
  PartCounts(const PartCounts&) = delete;
  PartCounts& operator=(const PartCounts&) = delete;

  // Reads a list or a tuple of `nranks` plain integers, the rows of each part. Returns false for anything else.
  bool Read(PyObject* given, size_t nranks);
  size_t of(size_t rank) const { return counts()[rank]; }
  size_t total() const { return total_; }

  // Makes rows of `row` elements, whose sum is no larger than a size_t, elements. Returns their array. Once.
  const size_t* ToElements(size_t row);

 private:
  const size_t* counts() const { return more_.empty() ? few_.data() : more_.data(); }

  std::array<size_t, 16> few_;  // Most jobs of one host need no memory for them.
  std::vector<size_t> more_;    // All of them where they are more.
  size_t nranks_ = 0;
  size_t total_ = 0;
};

}  // namespace annulus_python
