// Runner: calls of plain arrays (plain_call.h), by functions that Python calls without pybind11, whose
// dispatch would take half of a small call's time.
//
// Threads: only with Python's global lock (GIL), which a call gives up while it may block.
#pragma once

#include <pybind11/pybind11.h>

namespace annulus_python {

// Defines runner(handle, options, request_type), which returns an object with these methods; `request_type` is a
// subclass of Started (started.h):
//
//   run(kind, send, recv, number, tag=0, sendcounts=None, recvcounts=None) -> the call's result
//   start(the same) -> a request_type, whose wait returns that
//   exchange(send, dest, recv, source, tag) -> recv
//   start_exchange(the same) -> a request_type, whose wait returns recv
//   group(arrays, in_place, op) -> a request_type of a list of allreduces, whose wait returns a list of their outputs
//
// `number` is a root or a peer, and of a reduction the operation's name; `tag` is the root of a reduce. The counts are
// lists of the rows of each rank's part, for kinds whose parts differ. For a broadcast both arrays are given; the rank
// takes its own. An output that is None is made. All return NotImplemented where the call has no plain form, and
// nothing has happened; they raise what it fails with.
void DefineRunner(pybind11::module_* module, const pybind11::dict& operations);

}  // namespace annulus_python
