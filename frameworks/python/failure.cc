#include "frameworks/python/failure.h"

#include <pybind11/pybind11.h>

namespace annulus_python {

namespace py = pybind11;

Failure Failure::OfThread(annulus_status_t status) {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  Failure failure;
  failure.status = status;
  if (annulus_last_error(&error) != ANNULUS_OK) return failure;
  failure.rank = error.rank;
  failure.peer = error.peer;
  failure.sequence = error.sequence;
  failure.collective = error.collective;
  failure.os_errno = error.cause == ANNULUS_CAUSE_ERRNO ? error.cause_code : 0;
  failure.message = error.message;
  failure.advice = error.advice;
  return failure;
}

Failure Failure::Closed() {
  Failure failure;
  failure.status = ANNULUS_ABORTED;
  failure.message = "the communicator is closed";
  failure.advice = "Close it after the last wait; a forked child needs a communicator of its own.";
  return failure;
}

void RegisterFailure() {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Failure& failure) {
      const py::object error =
          py::module_::import("annulus._errors")
              .attr("make")(static_cast<int>(failure.status), failure.rank, failure.peer, failure.sequence,
                            failure.collective, failure.os_errno, failure.message, failure.advice);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    }
  });
}

}  // namespace annulus_python
