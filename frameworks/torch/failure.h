// Failures of Annulus as PyTorch's DistBackendError, with the verdict and the culprit.
//
// Threads: any.
#pragma once

#include <annulus.h>

#include <exception>
#include <string>

namespace annulus_torch {

// What the failure of `call` says: the verdict of the communicator, which may be null, or this thread's latest failure.
std::string FailureText(const annulus_comm_t* comm, annulus_status_t status, const char* call);

// The same as an exception.
std::exception_ptr Failure(const annulus_comm_t* comm, annulus_status_t status, const char* call);

// Throws it unless the status is ANNULUS_OK.
void Check(const annulus_comm_t* comm, annulus_status_t status, const char* call);

}  // namespace annulus_torch
