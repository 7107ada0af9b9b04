// Started: an asynchronous call of plain arrays (plain_call.h) as Python holds it, without pybind11.
//
// Threads: only with Python's global lock (GIL), which its methods give up while they may block.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <span>
#include <vector>

#include "frameworks/python/handle.h"

namespace annulus_python {

// Defines the class Started, which is for subclasses. Its objects have the methods of pyannulus.Request:
//
//   wait(timeout=None) -> the result
//   test() -> bool
void DefineStarted(pybind11::module_* module);

// Queues a call, or a send and a receive as a group. Returns its new object, of a subclass of Started, whose wait
// returns `result`; null where the call has no plain form, and nothing has happened. Throws a Failure, or what Python
// raises.
PyObject* Start(PyTypeObject* type, const std::shared_ptr<Handle>& handle, const CallOptions& options,
                std::span<const PlainCall> calls, PyObject* result);
// The same for a group, which is not empty.
PyObject* StartGroup(PyTypeObject* type, const std::shared_ptr<Handle>& handle, const CallOptions& options,
                     const std::vector<PlainCall>& group, PyObject* result);

}  // namespace annulus_python
