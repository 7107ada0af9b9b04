// A call of plain arrays, which need no closer look than the buffer protocol gives: contiguous, aligned, of one type
// that has a letter, as long as the kind of call wants. It costs a microsecond less than a described one (call.h),
// which also says what is wrong with other arrays.
//
// Threads: only with Python's global lock (GIL).
#pragma once

#include <annulus.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

namespace annulus_python {

struct ReleaseBuffer {
  void operator()(Py_buffer* buffer) const {
    PyBuffer_Release(buffer);
    delete buffer;
  }
};

// An array's memory, lent to the library: until it is given back the array is neither freed nor resized.
using Lent = std::unique_ptr<Py_buffer, ReleaseBuffer>;

struct PlainCall {
  annulus_kind_t kind;
  const pybind11::object& send;  // None where the rank sends nothing, as `recv` where it gets nothing.
  const pybind11::object& recv;
  int number = 0;  // The operation of a reduction, else the root or the peer.
};

// Fills in *call for a communicator of `size` ranks, and lends its arrays to `lent`. Returns false where an array is
// not plain or too long or short, or for a kind that has no plain form.
bool Describe(const PlainCall& plain, int size, std::vector<Lent>* lent, annulus_call_t* call);

}  // namespace annulus_python
