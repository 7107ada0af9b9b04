#include "frameworks/python/part_counts.h"

#include <limits>

#include "frameworks/python/numpy_array.h"

namespace annulus_python {

bool LargeNumberOf(PyObject* given, int* number) {
  int overflow = 0;
  const long value = PyLong_AsLongAndOverflow(given, &overflow);
  if (overflow != 0 || value < 0 || value > std::numeric_limits<int>::max()) return false;
  *number = static_cast<int>(value);
  return true;
}

bool PartCounts::Read(PyObject* given, size_t nranks) {
  if (nranks > few_.size()) more_.resize(nranks);
  nranks_ = nranks;
  total_ = 0;
  size_t* const read = counts();
  if (!PyList_CheckExact(given) && !PyTuple_CheckExact(given)) {
    if (!ReadNumbers(given, nranks, read)) return false;
    for (size_t rank = 0; rank < nranks; ++rank) total_ += read[rank];
    return true;
  }
  if (static_cast<size_t>(PySequence_Fast_GET_SIZE(given)) != nranks) return false;
  PyObject* const* const items = PySequence_Fast_ITEMS(given);
  for (size_t rank = 0; rank < nranks; ++rank) {
    int count = 0;
    if (!NumberOf(items[rank], &count)) return false;
    read[rank] = static_cast<size_t>(count);
    total_ += read[rank];
  }
  return true;
}

const size_t* PartCounts::ToElements(size_t row) {
  size_t* const elements = counts();
  if (row != 1) {
    for (size_t rank = 0; rank < nranks_; ++rank) elements[rank] *= row;
  }
  return elements;
}

}  // namespace annulus_python
