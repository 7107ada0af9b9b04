// A call of plain arrays, which need no closer look than numpy_array.h takes: contiguous, aligned, of one type that has
// a fixed number in numpy, as long as the kind of call wants. A described call (call.h) costs microseconds more, and
// says what is wrong with other arrays.
//
// Threads: only with Python's global lock (GIL).
#pragma once

#include <annulus.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace annulus_python {

struct PlainCall {
  annulus_kind_t kind;
  PyObject* send;  // Null where the rank sends nothing, as `recv` where it gets nothing. Numpy's.
  PyObject* recv;
  int number = 0;   // The operation of a reduction, else the root or the peer.
  int32_t tag = 0;  // A message's tag.
  int root = 0;     // Of a reduce.
};

// Whether a plain call of that kind has an operation for its number.
bool Reduces(int kind);

// The arrays of such a call, which stay alive as long as this lives. They need no memory of their own.
class PlainArrays {
 public:
  PlainArrays() = default;
  PlainArrays(PlainArrays&&) = default;
  PlainArrays& operator=(PlainArrays&&) = default;

  // Fills in *call, which is zero, for a communicator of `size` ranks. Once, first. Returns false where an array is not
  // plain or too long or short, or for a kind that has no plain form.
  bool Describe(const PlainCall& plain, int size, annulus_call_t* call);
  // Leaves the arrays to `kept`, which has room for two more.
  void MoveTo(std::vector<pybind11::object>* kept);

 private:
  pybind11::object send_;
  pybind11::object recv_;
};

}  // namespace annulus_python
