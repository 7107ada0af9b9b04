// The lengths of the parts of an array, one for each rank, where they differ.
//
// Threads: only with Python's global lock (GIL).
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <vector>

namespace annulus_python {

// As NumberOf, of any exact int of Python's.
bool LargeNumberOf(PyObject* given, int* number);

// Reads a plain integer of Python's, from 0 to the largest int. Returns false for anything else.
inline bool NumberOf(PyObject* given, int* number) {
  if (!PyLong_CheckExact(given)) return false;
#if PY_VERSION_HEX < 0x030C0000
  // Up to 2^30, without a call: the value is one digit, or none.
  const Py_ssize_t digits = Py_SIZE(given);
  if (digits == 0 || digits == 1) {
    *number = digits == 0 ? 0 : static_cast<int>(reinterpret_cast<const PyLongObject*>(given)->ob_digit[0]);
    return true;
  }
#endif
  return LargeNumberOf(given, number);
}

class PartCounts {
 public:
  PartCounts() = default;
  PartCounts(const PartCounts&) = delete;
  PartCounts& operator=(const PartCounts&) = delete;

  // Reads a list or a tuple of `nranks` plain integers, or numpy's array of as many, the rows of each part. Returns
  // false for anything else.
  bool Read(PyObject* given, size_t nranks);
  size_t of(size_t rank) const { return counts()[rank]; }
  size_t total() const { return total_; }

  // Makes rows of `row` elements, whose sum is no larger than a size_t, elements. Returns their array. Once.
  const size_t* ToElements(size_t row);

 private:
  size_t* counts() { return more_.empty() ? few_.data() : more_.data(); }
  const size_t* counts() const { return more_.empty() ? few_.data() : more_.data(); }

  std::array<size_t, 16> few_;  // Most jobs of one host need no memory for them.
  std::vector<size_t> more_;    // All of them where they are more.
  size_t nranks_ = 0;
  size_t total_ = 0;
};

}  // namespace annulus_python
