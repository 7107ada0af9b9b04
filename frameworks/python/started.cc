#include "frameworks/python/started.h"

#include <structmember.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "frameworks/python/failure.h"

namespace annulus_python {

namespace py = pybind11;

namespace {

struct Started {
  PyObject_HEAD PyObject* weak_references;
  PyObject* result;
  std::shared_ptr<Handle> handle;  // The communicator lives as long.
  PlainWork work;
};

// As long as a wait gets: a year, as good as for ever.
constexpr double kMostMs = 365.0 * 24 * 3600 * 1000;

Started* Cast(PyObject* self) { return reinterpret_cast<Started*>(self); }

// Reads wait's argument, which may be null. Returns false, and raises, where it is no number.
bool ToMs(PyObject* timeout, int64_t* ms) {
  *ms = -1;
  if (timeout == nullptr || timeout == Py_None) return true;
  const double seconds = PyFloat_AsDouble(timeout);
  if (seconds == -1 && PyErr_Occurred() != nullptr) return false;
  if (std::isnan(seconds)) {
    PyErr_SetString(PyExc_ValueError, "timeout is NaN");
    return false;
  }
  *ms = static_cast<int64_t>(std::clamp(seconds * 1000, 0.0, kMostMs));
  return true;
}

// 1: it is done; 0: it is not; -1: an exception was raised.
int WaitFor(Started* self, int64_t timeout_ms) {
  try {
    return self->handle->WaitPlain(&self->work, timeout_ms) ? 1 : 0;
  } catch (...) {
    RaiseHandled();
    return -1;
  }
}

PyObject* Wait(PyObject* self, PyObject* const* given, Py_ssize_t positional, PyObject* names) {
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  const bool is_called_so = named == 0 || PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "timeout") == 0;
  if (positional + named > 1 || !is_called_so) {
    PyErr_SetString(PyExc_TypeError, "wait takes one argument, timeout");
    return nullptr;
  }
  PyObject* const timeout = positional + named == 0 ? nullptr : given[0];
  int64_t timeout_ms = 0;
  if (!ToMs(timeout, &timeout_ms)) return nullptr;
  const int done = WaitFor(Cast(self), timeout_ms);
  if (done == 0) PyErr_Format(PyExc_TimeoutError, "not done after %S s", timeout);
  return done == 1 ? Py_NewRef(Cast(self)->result) : nullptr;
}

PyObject* Test(PyObject* self, PyObject*) {
  const int done = WaitFor(Cast(self), 0);
  return done < 0 ? nullptr : PyBool_FromLong(done);
}

PyObject* RefuseNew(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "requests are made by asynchronous calls");
  return nullptr;
}

void Free(PyObject* object) {
  Started* const self = Cast(object);
  PyTypeObject* const type = Py_TYPE(object);
  PyObject *kind = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&kind, &value, &trace);
  if (self->weak_references != nullptr) PyObject_ClearWeakRefs(object);
  if (self->handle != nullptr) self->handle->DropPlain(&self->work);
  std::destroy_at(&self->work);
  std::destroy_at(&self->handle);
  Py_XDECREF(self->result);
  PyErr_Restore(kind, value, trace);
  type->tp_free(object);
  Py_DECREF(type);
}

// Makes an object whose work `begin` fills in; null where that returns false.
template <class Begin>
PyObject* Make(PyTypeObject* type, const std::shared_ptr<Handle>& handle, PyObject* result, Begin begin) {
  PyObject* const made = type->tp_alloc(type, 0);
  if (made == nullptr) throw py::error_already_set();
  auto owned = py::reinterpret_steal<py::object>(made);
  Started* const started = Cast(made);
  std::construct_at(&started->work);
  std::construct_at(&started->handle, handle);
  if (!begin(&started->work)) return nullptr;
  started->result = Py_NewRef(result);
  return owned.release().ptr();
}

}  // namespace

PyObject* Start(PyTypeObject* type, const std::shared_ptr<Handle>& handle, const CallOptions& options,
                std::span<const PlainCall> calls, PyObject* result) {
  return Make(type, handle, result, [&](PlainWork* work) { return handle->StartPlain(options, calls, work); });
}

PyObject* StartGroup(PyTypeObject* type, const std::shared_ptr<Handle>& handle, const CallOptions& options,
                     const std::vector<PlainCall>& group, PyObject* result) {
  return Make(type, handle, result, [&](PlainWork* work) { return handle->StartPlainGroup(options, group, work); });
}

void DefineStarted(py::module_* module) {
  static PyMethodDef methods[] = {{"wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&Wait)),
                                   METH_FASTCALL | METH_KEYWORDS, "wait($self, timeout=None)\n--\n\nAs Request.wait."},
                                  {"test", &Test, METH_NOARGS, "test($self)\n--\n\nAs Request.test."},
                                  {nullptr, nullptr, 0, nullptr}};
  static PyMemberDef members[] = {
      {"__weaklistoffset__", T_PYSSIZET, sizeof(PyObject), READONLY, nullptr},  // The first member.
      {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(&RefuseNew)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(&Free)},
                                {Py_tp_methods, methods},
                                {Py_tp_members, members},
                                {0, nullptr}};
  static PyType_Spec spec = {"pyannulus._core.Started", sizeof(Started), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                             slots};
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  module->add_object("Started", py::reinterpret_steal<py::object>(type));
}

}  // namespace annulus_python
