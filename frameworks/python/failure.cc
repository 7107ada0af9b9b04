#include "frameworks/python/failure.h"

#include <pybind11/pybind11.h>

#include <new>

namespace annulus_python {

namespace py = pybind11;

namespace {

Failure PartsOf(const annulus_error_t& error) {
  Failure failure;
  failure.status = error.status;
  failure.scope = error.scope;
  failure.rank = error.rank;
  failure.peer = error.peer;
  failure.sequence = error.sequence;
  failure.collective = error.collective;
  failure.label = error.label;
  failure.cause = error.cause;
  failure.cause_code = error.cause_code;
  failure.message = error.message;
  failure.advice = error.advice;
  return failure;
}

}  // namespace

Failure Failure::OfThread(annulus_status_t status) {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  Failure failure;
  if (annulus_last_error(&error) == ANNULUS_OK) failure = PartsOf(error);
  failure.status = status;
  return failure;
}

Failure Failure::Verdict(annulus_comm_t* comm) {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  const annulus_status_t status = annulus_comm_verdict(comm, &error);
  return status == ANNULUS_OK ? PartsOf(error) : OfThread(status);
}

Failure Failure::Closed() {
  Failure failure;
  failure.status = ANNULUS_ABORTED;
  failure.scope = ANNULUS_SCOPE_COMMUNICATOR;
  failure.message = "the communicator is closed";
  failure.advice = "Close it after the last wait; a forked child needs a communicator of its own.";
  return failure;
}

// Other ranks may be programs whose texts are not UTF-8.
static py::object Text(const std::string& text) {
  PyObject* const decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(decoded);
}

py::object Failure::ToPython() const {
  return py::module_::import("pyannulus._errors")
      .attr("make")(static_cast<int>(status), scope, rank, peer, sequence, collective, Text(label), cause, cause_code,
                    Text(message), Text(advice));
}

void RaiseHandled() {
  try {
    throw;
  } catch (const Failure& failure) {
    try {
      const py::object error = failure.ToPython();
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    } catch (py::error_already_set& error) {
      error.restore();
    }
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

void RegisterFailure() {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Failure& failure) {
      const py::object error = failure.ToPython();
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    }
  });
}

}  // namespace annulus_python
