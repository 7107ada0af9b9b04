// A reduction by a Python function, as the library calls it.
//
// Threads: Run by the thread that does the collective, which takes Python's global lock (GIL); the rest with the GIL.
#pragma once

#include <annulus.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstddef>
#include <thread>

namespace annulus_python {

class Reduction {
 public:
  // `combine` takes (left, right, out, type): three views of bytes, of which only `out` may be written, and the type's
  // number.
  explicit Reduction(pybind11::object combine) : combine_(std::move(combine)) {}
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  // An annulus_reduce_fn; `self` is a Reduction. It fails with an exception, which ends the communicator: what is not
  // combined must not be taken for a result.
  static int32_t Run(const void* left, const void* right, void* out, size_t count, annulus_type_t type, void* self);

  // What the function raised first; None if nothing.
  pybind11::object error() const { return error_; }

  // Whether the calling thread is in the function.
  bool running_here() const { return thread_ == std::this_thread::get_id(); }

 private:
  void Combine(const void* left, const void* right, void* out, size_t count, annulus_type_t type);

  const pybind11::object combine_;
  pybind11::object error_ = pybind11::none();
  std::atomic<std::thread::id> thread_{};
};

}  // namespace annulus_python
