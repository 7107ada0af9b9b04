#include "frameworks/python/runner.h"

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "frameworks/python/failure.h"
#include "frameworks/python/handle.h"
#include "frameworks/python/numpy_array.h"
#include "frameworks/python/part_counts.h"
#include "frameworks/python/plain_call.h"
#include "frameworks/python/started.h"

namespace annulus_python {

namespace py = pybind11;

namespace {

// What all have.
struct Shared {
  py::object array_type;  // Numpy's; null where its arrays are not laid out as expected: then no call is plain.
  py::dict operations;
};

struct Parts {
  std::shared_ptr<Handle> handle;
  py::object calls;            // Python's object of the options, which the garbage collector sees.
  const CallOptions* options;  // Its content.
  py::object request_type;
  std::shared_ptr<const Shared> shared;
};

struct Runner {
  PyObject_HEAD Parts* parts;
};

// Numbers of arguments.
constexpr Py_ssize_t kFewest = 4;
constexpr Py_ssize_t kMost = 7;

PyTypeObject* runner_type = nullptr;  // Lives as long as the module.

// Reads an operation's name. Returns false for anything else.
bool OperationOf(PyObject* given, const py::dict& operations, int* number) {
  if (!PyUnicode_CheckExact(given)) return false;
  given = PyDict_GetItemWithError(operations.ptr(), given);
  return given != nullptr && NumberOf(given, number);
}

// Null for None. Returns false for other things than arrays.
bool ArrayOf(PyObject* given, const Shared& shared, PyObject** array) {
  *array = given == Py_None ? nullptr : given;
  if (*array == nullptr) return true;
  auto* const type = reinterpret_cast<PyTypeObject*>(shared.array_type.ptr());
  return type != nullptr && PyObject_TypeCheck(given, type);
}

// Reads the arguments of Runner's functions, where those from kFewest on may be missing. Returns false where they are
// those of no plain call.
bool CallOf(const Parts& parts, PyObject* const* given, Py_ssize_t count, PlainCounts* room, PlainCall* call) {
  const Shared& shared = *parts.shared;
  int kind = 0;
  int tag = 0;
  if (!NumberOf(given[0], &kind)) return false;
  if (Reduces(kind) ? !OperationOf(given[3], shared.operations, &call->op) : !NumberOf(given[3], &call->root))
    return false;
  if (count > kFewest && !NumberOf(given[kFewest], &tag)) return false;
  if (!ArrayOf(given[1], shared, &call->send) || !ArrayOf(given[2], shared, &call->recv)) return false;
  call->kind = static_cast<annulus_kind_t>(kind);
  (kind == ANNULUS_CALL_REDUCE ? call->root : call->tag) = tag;
  const auto counts_at = [&](Py_ssize_t at) { return count > at ? given[at] : Py_None; };
  return KeepUsed(parts.handle->ranks(), counts_at(kMost - 2), counts_at(kMost - 1), room, call);
}

const Parts& PartsOf(PyObject* self) { return *reinterpret_cast<Runner*>(self)->parts; }

PyTypeObject* RequestType(const Parts& parts) { return reinterpret_cast<PyTypeObject*>(parts.request_type.ptr()); }

// Calls make(call, result), which returns a new reference or null, for a plain call. NotImplemented for others and for
// null. The result is the output, which is made here where there is none.
template <class Make>
PyObject* Do(PyObject* self, PyObject* const* given, Py_ssize_t count, Make make) {
  if (count < kFewest || count > kMost) {
    PyErr_SetString(PyExc_TypeError, "a runner takes kind, send, recv, number and perhaps tag and counts");
    return nullptr;
  }
  try {
    const Parts& parts = PartsOf(self);
    PlainCounts room;
    PlainCall call{};
    if (!parts.options->done.is_none() || !CallOf(parts, given, count, &room, &call)) Py_RETURN_NOTIMPLEMENTED;
    const py::object output = call.recv == nullptr ? NewOutput(call, parts.handle->ranks()) : py::object();
    if (output) call.recv = output.ptr();
    PyObject* const own = call.kind == ANNULUS_CALL_BROADCAST ? call.send : Py_None;
    PyObject* const made = make(call, call.recv != nullptr ? call.recv : own);
    return made != nullptr ? made : Py_NewRef(Py_NotImplemented);
  } catch (...) {
    RaiseHandled();
    return nullptr;
  }
}

PyObject* RunMethod(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  const Parts& parts = PartsOf(self);
  return Do(self, given, count, [&](const PlainCall& call, PyObject* result) {
    return parts.handle->RunPlain(*parts.options, {&call, 1}) ? Py_NewRef(result) : nullptr;
  });
}

PyObject* StartMethod(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  const Parts& parts = PartsOf(self);
  return Do(self, given, count, [&](const PlainCall& call, PyObject* result) {
    return Start(RequestType(parts), parts.handle, *parts.options, {&call, 1}, result);
  });
}

// Null where the arguments arrays, in_place and op are those of no group of plain allreduces.
PyObject* Group(const Parts& parts, PyObject* const* given) {
  const Shared& shared = *parts.shared;
  int op = 0;
  if (!PyList_CheckExact(given[0]) || !OperationOf(given[2], shared.operations, &op)) return nullptr;
  const bool in_place = given[1] == Py_True;
  py::list results;
  std::vector<PlainCall> group;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(given[0]); ++i) {
    PlainCall call{ANNULUS_CALL_ALLREDUCE, nullptr, nullptr, op};
    if (!ArrayOf(PyList_GET_ITEM(given[0], i), shared, &call.send) || call.send == nullptr) return nullptr;
    const py::object result = in_place ? py::reinterpret_borrow<py::object>(call.send) : NewLike(call.send);
    results.append(result);
    call.recv = result.ptr();
    group.push_back(call);
  }
  if (group.empty()) return nullptr;
  return StartGroup(RequestType(parts), parts.handle, *parts.options, group, results.ptr());
}

// Reads the arguments send, dest, recv, source and tag. Returns false where they are those of no two plain messages.
bool ExchangeOf(const Shared& shared, PyObject* const* given, PlainCall (*both)[2]) {
  auto& [send, recv] = *both;
  send.kind = ANNULUS_CALL_SEND;
  recv.kind = ANNULUS_CALL_RECV;
  if (!ArrayOf(given[0], shared, &send.send) || !ArrayOf(given[2], shared, &recv.recv)) return false;
  int tag = 0;
  if (!NumberOf(given[1], &send.root) || !NumberOf(given[3], &recv.root) || !NumberOf(given[4], &tag)) return false;
  send.tag = recv.tag = tag;
  return true;
}

// As Do, of the arguments of an exchange.
template <class Make>
PyObject* DoExchange(PyObject* self, PyObject* const* given, Py_ssize_t count, Make make) {
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError, "exchange takes send, dest, recv, source and tag");
    return nullptr;
  }
  try {
    PlainCall both[2]{};
    PyObject* const made = ExchangeOf(*PartsOf(self).shared, given, &both) ? make(both, given[2]) : nullptr;
    return made != nullptr ? made : Py_NewRef(Py_NotImplemented);
  } catch (...) {
    RaiseHandled();
    return nullptr;
  }
}

PyObject* ExchangeMethod(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  const Parts& parts = PartsOf(self);
  return DoExchange(self, given, count, [&](std::span<const PlainCall> both, PyObject* result) {
    return parts.handle->RunPlain(*parts.options, both) ? Py_NewRef(result) : nullptr;
  });
}

PyObject* StartExchangeMethod(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  const Parts& parts = PartsOf(self);
  return DoExchange(self, given, count, [&](std::span<const PlainCall> both, PyObject* result) {
    return Start(RequestType(parts), parts.handle, *parts.options, both, result);
  });
}

PyObject* GroupMethod(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "group takes arrays, in_place and op");
    return nullptr;
  }
  try {
    PyObject* const made = Group(PartsOf(self), given);
    return made != nullptr ? made : Py_NewRef(Py_NotImplemented);
  } catch (...) {
    RaiseHandled();
    return nullptr;
  }
}

int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const Parts* const parts = reinterpret_cast<Runner*>(self)->parts;
  if (parts == nullptr) return 0;
  Py_VISIT(parts->calls.ptr());
  Py_VISIT(parts->request_type.ptr());
  return 0;
}

void Free(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
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
      {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&RunMethod)), METH_FASTCALL, nullptr},
      {"start", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&StartMethod)), METH_FASTCALL, nullptr},
      {"exchange", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&ExchangeMethod)), METH_FASTCALL,
       nullptr},
      {"start_exchange", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&StartExchangeMethod)),
       METH_FASTCALL, nullptr},
      {"group", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&GroupMethod)), METH_FASTCALL, nullptr},
      {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(&Free)},
                                {Py_tp_traverse, reinterpret_cast<void*>(&Traverse)},
                                {Py_tp_methods, methods},
                                {0, nullptr}};
  static PyType_Spec spec = {"pyannulus._core.Runner", sizeof(Runner), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  runner_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (runner_type == nullptr) throw py::error_already_set();
  Shared shared{py::module_::import("numpy").attr("ndarray"), operations};
  if (!HasKnownLayout(shared.array_type)) shared.array_type = py::object();
  module->def("runner", [shared = std::make_shared<const Shared>(std::move(shared))](
                            const std::shared_ptr<Handle>& handle, const py::object& calls,
                            const py::type& request_type) {
    return Make(std::make_unique<Parts>(Parts{handle, calls, &calls.cast<const CallOptions&>(), request_type, shared}));
  });
}

}  // namespace annulus_python
