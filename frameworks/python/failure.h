// What went wrong in the library, in parts, and the Python exception that is made of them.
//
// Threads: Failure any, but ToPython; that and RegisterFailure only with Python's global lock (GIL).
#pragma once

#include <annulus.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <exception>
#include <string>

namespace annulus_python {

// Thrown where Python called us; becomes pyannulus.Error or one of its subclasses there.
struct Failure : std::exception {
  annulus_status_t status = ANNULUS_INTERNAL;
  int32_t scope = ANNULUS_SCOPE_CALL;
  int32_t rank = -1;
  int32_t peer = -1;
  uint64_t sequence = 0;
  std::string collective;
  std::string label;
  int32_t cause = ANNULUS_CAUSE_NONE;
  int32_t cause_code = 0;
  std::string message;
  std::string advice;

  const char* what() const noexcept override { return message.c_str(); }

  // The failure of the call that this thread just made and that returned `status`.
  static Failure OfThread(annulus_status_t status);

  // The verdict of `comm`; with ANNULUS_OK while it is alive.
  static Failure Verdict(annulus_comm_t* comm);

  // The failure of work on a communicator that was closed before the work was done.
  static Failure Closed();

  // The Python exception; with the GIL.
  pybind11::object ToPython() const;
};

// Raises the C++ exception that is being handled in Python, where pybind11 does not; with the GIL.
void RaiseHandled();

// Makes Python see Failures as what pyannulus._errors.make returns for their parts.
void RegisterFailure();

}  // namespace annulus_python
