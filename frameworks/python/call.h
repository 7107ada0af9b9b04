// A call as Python describes it, before it is submitted: annulus_call_t with the objects that its pointers point into.
//
// Threads: only with Python's global lock (GIL).
#pragma once

#include <annulus.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace annulus_python {

// What many calls may share.
struct CallOptions {
  int64_t timeout_ms = 0;  // 0: the communicator's.
  int priority = 0;
  std::string label;
  pybind11::object done = pybind11::none();  // done(status) is called once all calls submitted together have ended.
  bool agree_first = false;                  // Ranks compare the call before its data moves.
  std::optional<uintptr_t> stream;           // Handle of the CUDA stream that orders the call.

  // For collected.h: `done` may refer to what has the options.
  int Visit(visitproc visit, void* arg) const {
    Py_VISIT(done.ptr());
    return 0;
  }
  void Clear() { done = pybind11::none(); }
};

// Fills in the fields of *call that the options give, but not `done`. They outlive it.
void SetOptions(const CallOptions& options, annulus_call_t* call);

// What a receive got, as Python sees it. The library fills it while the receive is under way.
struct Received {
  annulus_received_t got{sizeof(annulus_received_t), -1, -1, 0};
};

struct Call {
  // C-contiguous buffers, either of which may be None.
  pybind11::object send;
  pybind11::object recv;
  annulus_call_t call{};  // Without what the other members hold.
  std::vector<size_t> sendcounts;
  std::vector<size_t> recvcounts;
  std::shared_ptr<const CallOptions> options;
  std::shared_ptr<Received> received = nullptr;  // What a receive got, if its user wants to know; else null.
};

// Defines the classes Call and Calls, the options with a method for each kind of call, which returns a Call.
void DefineCalls(pybind11::module_* module);

}  // namespace annulus_python
