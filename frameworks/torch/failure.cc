#include "frameworks/torch/failure.h"

#include <c10/util/Exception.h>

namespace annulus_torch {

std::string FailureText(const annulus_comm_t* comm, annulus_status_t status, const char* call) {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  if (comm != nullptr) annulus_comm_verdict(comm, &error);
  if (error.status != status) {
    error = {};
    error.struct_bytes = sizeof error;
    annulus_last_error(&error);
  }
  std::string text = std::string("Annulus: ") + call + ": " + annulus_status_string(status);
  if (error.status != status) return text;  // It is that of another call.
  if (error.message != nullptr && *error.message != '\0') text += std::string(": ") + error.message;
  if (error.rank >= 0) text += " [at fault: rank " + std::to_string(error.rank) + " of the group]";
  if (error.advice != nullptr && *error.advice != '\0') text += std::string(". ") + error.advice;
  return text;
}

std::exception_ptr Failure(const annulus_comm_t* comm, annulus_status_t status, const char* call) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  return std::make_exception_ptr(c10::DistBackendError(here, FailureText(comm, status, call)));
}

void Check(const annulus_comm_t* comm, annulus_status_t status, const char* call) {
  if (status != ANNULUS_OK) std::rethrow_exception(Failure(comm, status, call));
}

}  // namespace annulus_torch
