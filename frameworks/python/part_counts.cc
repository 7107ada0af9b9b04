#include "frameworks/python/part_counts.h"

#include <limits>

namespace annulus_python {

bool NumberOf(PyObject* given, int* number) {
  if (!PyLong_CheckExact(given)) return false;
  int overflow = 0;
  const long value = PyLong_AsLongAndOverflow(given, &overflow);
  if (overflow != 0 || value < 0 || value > std::numeric_limits<int>::max()) return false;
  *number = static_cast<int>(value);
  return true;
}

bool PartCounts::Read(PyObject* given, size_t nranks) {
  if (!PyList_CheckExact(given) && !PyTuple_CheckExact(given)) return false;
  if (static_cast<size_t>(PySequence_Fast_GET_SIZE(given)) != nranks) return false;
  if (nranks > few_.size()) more_.resize(nranks);
  size_t* const counts = more_.empty() ? few_.data() : more_.data();
  nranks_ = nranks;
  total_ = 0;
  for (size_t rank = 0; rank < nranks; ++rank) {
    int count = 0;
    if (!NumberOf(PySequence_Fast_GET_ITEM(given, static_cast<Py_ssize_t>(rank)), &count)) return false;
    counts[rank] = static_cast<size_t>(count);
    total_ += counts[rank];
  }
  return true;
}

const size_t* PartCounts::ToElements(size_t row) {
  size_t* const counts = more_.empty() ? few_.data() : more_.data();
  for (size_t rank = 0; rank < nranks_; ++rank) counts[rank] *= row;
  return counts;
}

}  // namespace annulus_python
