// WithoutGil: gives Python's global lock (GIL) up for its lifetime, as pybind11::gil_scoped_release, in less time.
#pragma once

#include <Python.h>

namespace annulus_python {

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace annulus_python
