// Common parts of the files of the C API: handles, codes and errors.
//
// Threads: any.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "collectives/annulus.h"
#include "collectives/comm/communicator.h"

namespace annulus::c_api {

inline annulus_status_t ToC(Code code) { return static_cast<annulus_status_t>(code); }

// Records a refusal for annulus_last_error, and returns the status.
annulus_status_t Reject(const Status& status);

// The same where memory has run out, perhaps also for the words.
annulus_status_t RejectForMemory() noexcept;

inline annulus_status_t Outcome(const Status& status) { return status.ok() ? ANNULUS_OK : Reject(status); }

// The same for a call on `comm`, of which `status` is the outcome as Communicator gives it.
annulus_status_t Fail(Communicator* comm, const Status& status, CollectiveKind kind, const std::string& label);
inline annulus_status_t Outcome(Communicator* comm, const Status& status, CollectiveKind kind = CollectiveKind::kNone,
                                const char* label = nullptr) {
  if (status.ok()) [[likely]]
    return ANNULUS_OK;
  return Fail(comm, status, kind, label != nullptr ? label : "");
}

// Calls `function` and converts exceptions to a status, so that none leaves the C API.
template <class Function>
annulus_status_t Guarded(Function function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return RejectForMemory();
  } catch (const std::system_error& error) {
    return Reject({Code::kSystem, error.what(), Status::kNoRank, error.code().value()});
  } catch (const std::exception& error) {
    return Reject({Code::kInternal, error.what()});
  }
}

inline Communicator* Unwrap(annulus_comm_t* comm) { return reinterpret_cast<Communicator*>(comm); }
inline const Communicator* Unwrap(const annulus_comm_t* comm) { return reinterpret_cast<const Communicator*>(comm); }
// A request's pointer is not an address: its bits are the handle.
inline RequestHandle Unwrap(annulus_request_t* request) { return reinterpret_cast<RequestHandle>(request); }
inline annulus_request_t* Wrap(RequestHandle handle) { return reinterpret_cast<annulus_request_t*>(handle); }

}  // namespace annulus::c_api
