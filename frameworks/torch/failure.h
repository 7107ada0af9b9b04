// Failures of Annulus as PyTorch's DistBackendError, with the culprit and what to do.
//
// Threads: any.
#pragma once

#include <annulus.h>

#include <exception>
#include <string>

namespace annulus_torch {

// Why `call` failed, which this thread has just made: refused, or ended with its communicator.
std::exception_ptr Failure(annulus_status_t status, const char* call);

// The same in a callback, whose thread did not make the call. What was queued fails only with its communicator.
std::exception_ptr FailureInCallback(const annulus_comm_t* comm, annulus_status_t status, const char* call);

// Throws Failure unless the status is ANNULUS_OK.
void Check(annulus_status_t status, const char* call);

}  // namespace annulus_torch
