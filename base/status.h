// Status: the outcome of an operation. Free when OK: one code and no allocation.
//
// Threads: a Status is a value; distinct objects may be used from distinct threads.
#pragma once

#include <memory>
#include <string>
#include <utility>

namespace annulus {

// The numbers are the public annulus_status_t (annulus.h) and are never reused.
enum class Code : int {
  kOk = 0,
  kInProgress = 1,  // Nothing failed, nothing finished: call again.
  kInvalidArgument = 2,
  kMismatch = 3,  // Ranks disagree on the collective that they call.
  kTimeout = 4,
  kPeerLost = 5,  // A rank died, left or cannot be reached.
  kProtocol = 6,  // A peer sent what the wire format does not allow.
  kAuth = 7,      // A peer could not prove that it holds the job key.
  kAborted = 8,
  kSystem = 9,  // The operating system refused; see os_errno.
  kOutOfMemory = 10,
  kUnsupported = 11,
  kInternal = 12,
};

// Returns the code's name in lower case with spaces, as in "peer lost".
const char* CodeName(Code code);

class [[nodiscard]] Status {
 public:
  static constexpr int kNoRank = -1;

  Status() = default;
  explicit Status(Code code) : code_(code) {}
  Status(Code code, std::string message) : Status(code, std::move(message), kNoRank, 0) {}
  // `peer` is the rank that the failure concerns, kNoRank when there is none; `os_errno` is 0 when there is none.
  Status(Code code, std::string message, int peer, int os_errno);
  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;

  // A transport's "nothing happened; make progress and retry". Never allocates.
  static Status WouldBlock() { return Status(Code::kInProgress); }
  // kSystem with errno's text appended to `what`.
  static Status System(const std::string& what, int os_errno);
  static Status Invalid(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

  bool ok() const { return code_ == Code::kOk; }
  bool would_block() const { return code_ == Code::kInProgress; }
  Code code() const { return code_; }
  const std::string& message() const;
  int peer() const { return detail_ ? detail_->peer : kNoRank; }
  int os_errno() const { return detail_ ? detail_->os_errno : 0; }
  // "peer lost: rank 3 closed its connection".
  std::string ToString() const;

 private:
  struct Detail {
    std::string message;
    int peer;
    int os_errno;
  };
  Code code_ = Code::kOk;
  std::unique_ptr<Detail> detail_;
};

// Returns from the calling function when `expression` is not OK.
#define ANNULUS_RETURN_IF_ERROR(expression)            \
  do {                                                 \
    ::annulus::Status annulus_status_ = (expression);  \
    if (!annulus_status_.ok()) return annulus_status_; \
  } while (0)

}  // namespace annulus
