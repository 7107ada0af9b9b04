// A call of plain arrays, which need no closer look than numpy_array.h takes: contiguous, aligned, of one type that has
// a fixed number in numpy, as long as the kind of call wants. A described call (call.h) costs microseconds more, and
// says what is wrong with other arrays.
//
// Threads: only with Python's global lock (GIL).
#pragma once

#include <annulus.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "frameworks/python/part_counts.h"

namespace annulus_python {

struct Ranks {
  size_t own = 0;
  size_t count = 1;
};

struct PlainCall {
  annulus_kind_t kind;
  PyObject* send;  // Null where the rank sends nothing, as `recv` where it gets nothing. Numpy's.
  PyObject* recv;
  int op = 0;    // Of a reduction.
  int root = 0;  // Or the peer of a message.
  int32_t tag = 0;
  // Lengths of the parts, where they differ and this rank has to know.
  PartCounts* sendcounts = nullptr;
  PartCounts* recvcounts = nullptr;
};

// Room for the counts of a call.
struct PlainCounts {
  PartCounts send;
  PartCounts recv;
};

// Whether a call of that kind has an operation.
bool Reduces(int kind);

// Lets go of the arrays in *call that are not used, since another rank is the root, and reads the lists of rows of
// those parts that are used; those that the kind does not have are None. Returns false where they are not plain.
bool KeepUsed(const Ranks& ranks, PyObject* sendcounts, PyObject* recvcounts, PlainCounts* room, PlainCall* call);

// A new array for the output of a call that has all but that. Null where the call has no output, or its arrays are not
// plain. Throws what Python raises.
pybind11::object NewOutput(const PlainCall& plain, const Ranks& ranks);

// The arrays of such a call, or of a send and a receive, which stay alive as long as this lives. They need no memory of
// their own.
class PlainArrays {
 public:
  PlainArrays() = default;
  PlainArrays(PlainArrays&&) = default;
  PlainArrays& operator=(PlainArrays&&) = default;

  // Fills in *call, which is zero, and points to the counts of `plain`, which become elements. Returns
  // false where an array is not plain or too long or short, or for a kind that has no plain form.
  bool Describe(const PlainCall& plain, const Ranks& ranks, annulus_call_t* call);
  // Leaves the arrays to `kept`, which has room for two more.
  void MoveTo(std::vector<pybind11::object>* kept);

 private:
  pybind11::object send_;
  pybind11::object recv_;
};

}  // namespace annulus_python
