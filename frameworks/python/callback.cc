#include "frameworks/python/callback.h"

#include <memory>

namespace annulus_python {

namespace py = pybind11;

namespace {

thread_local const void* t_owner = nullptr;  // Owner of the callback that the thread is in.

}  // namespace

void Callback::Run(void* self, annulus_status_t status) {
  py::gil_scoped_acquire gil;
  Callback* const callback = static_cast<Callback*>(self);
  if (callback->status_ == ANNULUS_OK) callback->status_ = status;
  if (--callback->calls_ > 0) return;
  t_owner = callback->owner_;
  callback->End();
  delete callback;  // The function may hold the last reference to the communicator.
  t_owner = nullptr;
}

void Callback::End() const {
  try {
    function_(py::module_::import("pyannulus._errors").attr("status_of")(static_cast<int>(status_)));
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable(function_);
  }
}

bool Callback::RunsHere(const void* owner) { return t_owner == owner; }

}  // namespace annulus_python
