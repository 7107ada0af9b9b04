// A Python function that is called when calls have ended, as the library calls it.
//
// Threads: Run by the communicator's callback thread, which takes Python's global lock (GIL); the rest with the GIL.
#pragma once

#include <annulus.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <utility>

namespace annulus_python {

class Callback {
 public:
  // For `calls` calls of `owner` that are submitted together. Deletes itself after the last of them.
  Callback(pybind11::object function, const void* owner, size_t calls)
      : function_(std::move(function)), owner_(owner), calls_(calls) {}
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

  // An annulus_done_fn; `self` is a Callback. The function gets the first failure's status, or ANNULUS_OK. What it
  // raises goes to sys.unraisablehook, as nobody could catch it.
  static void Run(void* self, annulus_status_t status);

  // Whether the calling thread is in a callback of `owner`, whose end it must not wait for.
  static bool RunsHere(const void* owner);

 private:
  void End() const;

  const pybind11::object function_;
  const void* const owner_;
  size_t calls_;  // Those that have not ended.
  annulus_status_t status_ = ANNULUS_OK;
};

}  // namespace annulus_python
