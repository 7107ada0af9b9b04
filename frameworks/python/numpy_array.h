// What a numpy array says of itself, read where it lies: its memory, its length and its element type. The buffer
// protocol would say the same, but numpy puts the answer together anew each time, with memory of its own.
//
// Threads: only with Python's global lock (GIL).
#pragma once

#include <annulus.h>
#include <pybind11/pybind11.h>

#include <cstddef>

namespace annulus_python {

struct NumpyArray {
  void* data = nullptr;
  size_t count = 0;  // Elements.
  size_t rows = 1;   // Length of the first axis; 1 without axes.
  size_t row = 1;    // Elements of a row.
  annulus_type_t type = ANNULUS_TYPE_LAST;
};

// Whether arrays of numpy's class `array_type` are laid out as Read expects. Throws what Python raises.
bool HasKnownLayout(const pybind11::object& array_type);

// A new array of numpy's own class, with the shape and the element type of `array`, which has a known layout. Throws
// what Python raises.
pybind11::object NewLike(PyObject* array);
// The same with another length of the first axis, which it has in any case.
pybind11::object NewOfRows(PyObject* array, size_t rows);

// Reads an array of a class of known layout. Returns false where it is not contiguous, aligned and in this machine's
// byte order, its element type has no fixed number in numpy, or it `must_write` and may not be written.
bool Read(PyObject* array, bool must_write, NumpyArray* read);

// Reads `count` numbers from 0 to the largest int out of an array of numpy's own class with one axis, of int64 or
// int32. Returns false for anything else, and where the layout is not known.
bool ReadNumbers(PyObject* array, size_t count, size_t* numbers);

}  // namespace annulus_python
