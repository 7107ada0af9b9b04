#include "frameworks/python/failure.h"

#include <pybind11/pybind11.h>

namespace annulus_python {

namespace py = pybind11;

Failure Failure::OfThread(annulus_status_t status) {
  Failure failure;
  failure.status = status;
  failure.message = annulus_last_error_message();
  if (failure.message.empty()) failure.message = annulus_status_string(status);
  return failure;
}

Failure Failure::OfCommunicator(annulus_status_t status, const annulus_comm_t* comm) {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  // Another thread's refused call may be the latest by now; then only the status is known to be ours.
  if (annulus_comm_last_error(comm, &error) != ANNULUS_OK || error.status != status) return OfThread(status);
  Failure failure;
  failure.status = status;
  failure.rank = error.rank;
  failure.peer = error.peer;
  failure.sequence = error.sequence;
  failure.collective = error.collective;
  failure.os_errno = error.os_errno;
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
