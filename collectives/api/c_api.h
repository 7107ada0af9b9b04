// Common parts of the files of the C API: handles, codes and errors.
//
// Threads: any.
#pragma once

#include <string>

#include "collectives/annulus.h"
#include "collectives/comm/communicator.h"

namespace annulus::c_api {

inline annulus_status_t ToC(Code code) { return static_cast<annulus_status_t>(code); }

// Records a refusal for annulus_last_error, and returns the status. Where memory does not suffice for the words, they
// are left out.
annulus_status_t Reject(const Status& status) noexcept;
// The same for an invalid argument.
annulus_status_t Reject(const char* message) noexcept;
// The same for the exception that is being handled.
annulus_status_t RejectException() noexcept;

inline annulus_status_t Outcome(const Status& status) { return status.ok() ? ANNULUS_OK : Reject(status); }

// The same for a call on `comm`, of which `status` is the outcome as Communicator gives it.
annulus_status_t Fail(Communicator* comm, const Status& status, CollectiveKind kind, const char* label);
inline annulus_status_t Outcome(Communicator* comm, const Status& status, CollectiveKind kind = CollectiveKind::kNone,
                                const char* label = nullptr) {
  if (status.ok()) [[likely]]
    return ANNULUS_OK;
  return Fail(comm, status, kind, label != nullptr ? label : "");
}

// Calls `function` and converts exceptions to a status, so that none leaves the C API.
template <class Function>
[[gnu::always_inline]] inline annulus_status_t Guarded(Function function) {
  try {
    return function();
  } catch (...) {
    return RejectException();
  }
}

inline Communicator* Unwrap(annulus_comm_t* comm) { return reinterpret_cast<Communicator*>(comm); }
inline const Communicator* Unwrap(const annulus_comm_t* comm) { return reinterpret_cast<const Communicator*>(comm); }
// A request's pointer is not an address: its bits are the handle.
inline RequestHandle Unwrap(annulus_request_t* request) { return reinterpret_cast<RequestHandle>(request); }
inline annulus_request_t* Wrap(RequestHandle handle) { return reinterpret_cast<annulus_request_t*>(handle); }

}  // namespace annulus::c_api
