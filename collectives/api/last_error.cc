#include "collectives/api/last_error.h"

namespace annulus::c_api {
namespace {

struct Failure {
  Verdict parts;
  int32_t scope = ANNULUS_SCOPE_CALL;
  std::string collective;
  std::string label;
};

thread_local Failure t_failure;

}  // namespace

const char* AdviceFor(Code code) {
  if (code == Code::kInvalidArgument || code == Code::kUnsupported)
    return "Correct the call; nothing was sent, and the communicator stays usable.";
  if (code == Code::kMismatch)
    return "Make the same call on all ranks; no data has moved, and the communicator stays usable.";
  if (code == Code::kOutOfMemory)
    return "Wait for requests and free them, or raise ANNULUS_MEMORY_BYTES, and call again on this rank.";
  if (code == Code::kSystem) return "Free resources and call again; nothing was sent.";
  return "";
}

const char* AdviceWithout(Code code) {
  if (code == Code::kInvalidArgument || code == Code::kUnsupported) return "Correct the call; it did nothing.";
  if (code == Code::kOutOfMemory) return "Free memory and call again.";
  return "";
}

void RecordRefusal(const Status& status, int rank, const char* collective, const std::string& label,
                   const char* advice) {
  Verdict parts;
  parts.code = status.code();
  parts.rank = status.peer() >= 0 ? status.peer() : rank;
  parts.os_errno = status.os_errno();
  parts.message = status.message();
  parts.advice = advice;
  t_failure = {std::move(parts), ANNULUS_SCOPE_CALL, collective, label};
}

void RecordWithoutWords(Code code, int32_t scope) noexcept {
  t_failure = Failure();
  t_failure.parts.code = code;
  t_failure.scope = scope;
}

void RecordVerdict(const Verdict& verdict, const std::string& label) {
  t_failure = {verdict, ANNULUS_SCOPE_COMMUNICATOR, KindName(verdict.call.kind), label};
}

annulus_error_t PartsOf(const Verdict& verdict) {
  annulus_error_t parts{};
  parts.struct_bytes = sizeof parts;
  parts.status = static_cast<annulus_status_t>(verdict.code);
  parts.scope = ANNULUS_SCOPE_COMMUNICATOR;
  parts.rank = verdict.rank;
  parts.peer = verdict.peer;
  parts.cause = verdict.os_errno != 0 ? ANNULUS_CAUSE_ERRNO : ANNULUS_CAUSE_NONE;
  parts.cause_code = verdict.os_errno;
  parts.sequence = verdict.call.sequence;
  parts.collective = KindName(verdict.call.kind);
  parts.label = "";
  parts.message = verdict.message.c_str();
  parts.advice = verdict.advice.c_str();
  return parts;
}

annulus_error_t LastError() {
  annulus_error_t parts = PartsOf(t_failure.parts);
  parts.scope = t_failure.scope;
  parts.collective = t_failure.collective.c_str();
  parts.label = t_failure.label.c_str();
  return parts;
}

}  // namespace annulus::c_api
