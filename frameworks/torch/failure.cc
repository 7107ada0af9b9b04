#include "frameworks/torch/failure.h"

#include <c10/util/Exception.h>

namespace annulus_torch {
namespace {

// `error` describes the failure, or has the status ANNULUS_OK where nothing more is known of it.
std::exception_ptr FailureOf(const annulus_error_t& error, annulus_status_t status, const char* call) {
  // Programs look for " timeout " in the errors of PyTorch's own back ends.
  const char* const what = status == ANNULUS_TIMEOUT ? "the timeout passed" : annulus_status_string(status);
  std::string text = std::string("Annulus: ") + call + ": " + what;
  if (error.status != ANNULUS_OK) {
    if (*error.message != '\0') text += std::string(": ") + error.message;
    if (error.rank >= 0) text += " [at fault: rank " + std::to_string(error.rank) + " of the group]";
    if (*error.advice != '\0') text += std::string(". ") + error.advice;
  }
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  return std::make_exception_ptr(c10::DistBackendError(here, text));
}

annulus_error_t NoError() {
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  return error;
}

}  // namespace

std::exception_ptr Failure(annulus_status_t status, const char* call) {
  annulus_error_t error = NoError();
  annulus_last_error(&error);
  return FailureOf(error, status, call);
}

std::exception_ptr FailureInCallback(const annulus_comm_t* comm, annulus_status_t status, const char* call) {
  annulus_error_t error = NoError();
  annulus_comm_verdict(comm, &error);
  return FailureOf(error, status, call);
}

void Check(annulus_status_t status, const char* call) {
  if (status != ANNULUS_OK) std::rethrow_exception(Failure(status, call));
}

}  // namespace annulus_torch
