// What went wrong in the library, in parts, and the Python exception that is made of them.
//
// Threads: Failure any; RegisterFailure only with Python's global lock (GIL).
#pragma once

#include <annulus.h>

#include <cstdint>
#include <exception>
#include <string>

namespace annulus_python {

// Thrown where Python called us; becomes annulus.Error or one of its subclasses there.
struct Failure : std::exception {
  annulus_status_t status = ANNULUS_INTERNAL;
  int32_t rank = -1;
  int32_t peer = -1;
  uint64_t sequence = 0;
  std::string collective;
  int32_t os_errno = 0;
  std::string message;
  std::string advice;

  const char* what() const noexcept override { return message.c_str(); }

  // Of the call that this thread just made, and that returned `status`.
  static Failure OfThread(annulus_status_t status);

  // Of work on a communicator that was closed before it was done.
  static Failure Closed();
};

// Makes Python see Failures as what annulus._errors.make returns for their parts.
void RegisterFailure();

}  // namespace annulus_python
