// Runner: blocking calls of plain arrays (plain_call.h), by a function that Python calls without pybind11, whose
// dispatch would take half of a small call's time.
//
// Threads: only with Python's global lock (GIL), which a call gives up while it may block.
#pragma once

#include <pybind11/pybind11.h>

namespace annulus_python {

// Defines runner(handle, options, array_type), which returns an object with one method:
//
//   run(kind, send, recv, number) -> bool
//
// `number` is a root, a peer, an operation's number or its name. For a broadcast both arrays are given; the rank takes
// its own. Returns False where the call has no plain form, and nothing has happened; raises what the call fails with.
void DefineRunner(pybind11::module_* module, const pybind11::dict& operations);

}  // namespace annulus_python
