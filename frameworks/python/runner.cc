#include "frameworks/python/runner.h"

#include <limits>
#include <memory>
#include <new>
#include <stdexcept>

#include "frameworks/python/handle.h"

namespace annulus_python {

namespace py = pybind11;

namespace {

struct Parts {
  std::shared_ptr<Handle> handle;
  std::shared_ptr<const CallOptions> options;
  py::object array_type;
  py::dict operations;
};

struct Runner {
  PyObject_HEAD Parts* parts;
};

PyTypeObject* runner_type = nullptr;  // Lives as long as the module.

// Returns false where the object stands for no number here.
bool NumberOf(PyObject* given, const py::dict& operations, int* number) {
  if (PyUnicode_CheckExact(given)) {
    given = PyDict_GetItemWithError(operations.ptr(), given);
    if (given == nullptr) return false;
  }
  if (!PyLong_CheckExact(given)) return false;
  int overflow = 0;
  const long value = PyLong_AsLongAndOverflow(given, &overflow);
  if (overflow != 0 || value < 0 || value > std::numeric_limits<int>::max()) return false;
  *number = static_cast<int>(value);
  return true;
}

// Null for None. Returns false for other things than arrays.
bool ArrayOf(PyObject* given, const Parts& parts, PyObject** array) {
  *array = given == Py_None ? nullptr : given;
  return given == Py_None || PyObject_TypeCheck(given, reinterpret_cast<PyTypeObject*>(parts.array_type.ptr()));
}

bool RunPlain(const Parts& parts, PyObject* const* given) {
  int kind = 0;
  PlainCall plain{};
  if (!NumberOf(given[0], parts.operations, &kind) || !NumberOf(given[3], parts.operations, &plain.number))
    return false;
  if (!ArrayOf(given[1], parts, &plain.send) || !ArrayOf(given[2], parts, &plain.recv)) return false;
  plain.kind = static_cast<annulus_kind_t>(kind);
  if (kind == ANNULUS_CALL_BROADCAST) (plain.number == parts.handle->rank() ? plain.recv : plain.send) = nullptr;
  return parts.handle->RunPlain(*parts.options, plain);
}

// Raises the exception that is being handled.
void Raise() {
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

PyObject* Run(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "run takes kind, send, recv and number");
    return nullptr;
  }
  try {
    return PyBool_FromLong(RunPlain(*reinterpret_cast<Runner*>(self)->parts, given) ? 1 : 0);
  } catch (...) {
    Raise();
    return nullptr;
  }
}

void Free(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete reinterpret_cast<Runner*>(self)->parts;
  type->tp_free(self);
  Py_DECREF(type);
}

py::object Make(std::unique_ptr<Parts> parts) {
  PyObject* const made = runner_type->tp_alloc(runner_type, 0);
  if (made == nullptr) throw py::error_already_set();
  reinterpret_cast<Runner*>(made)->parts = parts.release();
  return py::reinterpret_steal<py::object>(made);
}

}  // namespace

void DefineRunner(py::module_* module, const py::dict& operations) {
  static PyMethodDef methods[] = {
      {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&Run)), METH_FASTCALL, nullptr},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(&Free)}, {Py_tp_methods, methods}, {0, nullptr}};
  static PyType_Spec spec = {"pyannulus._core.Runner", sizeof(Runner), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  runner_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (runner_type == nullptr) throw py::error_already_set();
  module->def("runner", [operations](const std::shared_ptr<Handle>& handle, const std::shared_ptr<CallOptions>& options,
                                     const py::type& array_type) {
    return Make(std::make_unique<Parts>(Parts{handle, options, array_type, operations}));
  });
}

}  // namespace annulus_python
