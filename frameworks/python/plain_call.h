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
  PyObject* send;  // Null where the rank sends nothing, as `recv` where it gets nothing.
  PyObject* recv;
  int number = 0;  // The operation of a reduction, else the root or the peer.
};

// The arrays of such a call, lent to the library as long as this lives. They need no memory of their own.
class PlainArrays {
 public:
  PlainArrays() = default;
  ~PlainArrays();
  PlainArrays(const PlainArrays&) = delete;
  PlainArrays& operator=(const PlainArrays&) = delete;

  // Fills in *call for a communicator of `size` ranks. Once, first. Returns false where an array is not plain or too
  // long or short, or for a kind that has no plain form.
  bool Describe(const PlainCall& plain, int size, annulus_call_t* call);
  // Leaves the arrays to `lent`, which is empty.
  void MoveTo(std::vector<Lent>* lent);

 private:
  // Lends the array; null where it is not contiguous or aligned or, though `flags` want it, not writable.
  const Py_buffer* TryToLend(PyObject* array, int flags);

  Py_buffer buffers_[2];
  int count_ = 0;
};

}  // namespace annulus_python
