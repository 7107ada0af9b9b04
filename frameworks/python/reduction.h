// A reduction by a Python function, as the library calls it.
//
// Threads: Run by the thread that does the collective, which takes Python's global lock (GIL); Release by any, which
// takes it too; the rest with the GIL.
#pragma once

#include <annulus.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <utility>

namespace annulus_python {

class Reduction {
 public:
  // `combine` takes (left, right, out, type): three views of bytes, of which only `out` may be written, and the type's
  // number. `owner` is the communicator's handle.
  Reduction(pybind11::object combine, const void* owner) : combine_(std::move(combine)), owner_(owner) {}
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  // An annulus_reduce_fn; `self` is a std::shared_ptr<Reduction>. An exception is a failure, which ends the
  // communicator: what is not combined must not be taken for a result.
  static int32_t Run(const void* left, const void* right, void* out, size_t count, annulus_type_t type, void* self);

  // The release function for `self`: lets go of the Python function. What it raised is kept.
  static void Release(void* self);

  // What the function raised first; None if nothing.
  pybind11::object error() const { return error_; }

  // For collected.h: the function may refer to the operation, and what it raised does.
  int Visit(visitproc visit, void* arg) const {
    Py_VISIT(combine_.ptr());
    Py_VISIT(error_.ptr());
    return 0;
  }
  void Clear() { combine_ = error_ = pybind11::none(); }

  // Whether the calling thread is in Run or Release of a reduction of `owner`.
  static bool RunsHere(const void* owner);

 private:
  void Combine(const void* left, const void* right, void* out, size_t count, annulus_type_t type);

  pybind11::object combine_;
  pybind11::object error_ = pybind11::none();
  const void* const owner_;
};

}  // namespace annulus_python
