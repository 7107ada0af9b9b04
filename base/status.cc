#include "base/status.h"

#include <cstring>

namespace annulus {

const char* CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInProgress:
      return "in progress";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kMismatch:
      return "mismatch";
    case Code::kTimeout:
      return "timeout";
    case Code::kPeerLost:
      return "peer lost";
    case Code::kProtocol:
      return "protocol error";
    case Code::kAuth:
      return "authentication failed";
    case Code::kAborted:
      return "aborted";
    case Code::kSystem:
      return "system error";
    case Code::kOutOfMemory:
      return "out of memory";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kInternal:
      return "internal error";
  }
  return "unknown status";
}

Status::Status(Code code, std::string message, int peer, int os_errno)
    : code_(code), detail_(new Detail{std::move(message), peer, os_errno}) {}

Status::Status(const Status& other)
    : code_(other.code_), detail_(other.detail_ ? new Detail(*other.detail_) : nullptr) {}

Status& Status::operator=(const Status& other) {
  if (this != &other) *this = Status(other);
  return *this;
}

Status Status::System(const std::string& what, int os_errno) {
  return {Code::kSystem, what + ": " + std::strerror(os_errno), kNoRank, os_errno};
}

const std::string& Status::message() const {
  static const std::string kNone;
  return detail_ ? detail_->message : kNone;
}

std::string Status::ToString() const {
  std::string text = CodeName(code_);
  if (!message().empty()) text += ": " + message();
  return text;
}

}  // namespace annulus
