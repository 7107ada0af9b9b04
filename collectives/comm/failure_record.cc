#include "collectives/comm/failure_record.h"

#include <utility>

namespace annulus {
namespace {

const char* RefusalAdvice(Code code) {
  if (code == Code::kOutOfMemory)
    return "Wait for requests and free them, or raise ANNULUS_MEMORY_BYTES, and call again on this rank.";
  if (code == Code::kSystem) return "Free resources and call again; nothing was sent.";
  return "Correct the call; nothing was sent and the communicator stays usable.";
}

}  // namespace

void FailureRecord::Record(const Verdict& verdict) {
  fatal_.failed = true;
  fatal_.verdict = verdict;
  if (verdict.call.sequence == 0) fatal_.verdict.call = surroundings_->Interrupted();
  surroundings_->Announce(fatal_.verdict);
}

void FailureRecord::End(const Verdict& verdict) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (ended()) return;
  Record(verdict);
  ended_.store(true, std::memory_order_release);
}

// Set ended_ last: a caller that sees ended() may end the process at once.
void FailureRecord::CheckTold() {
  if (ended()) return;
  const Verdict* const told = surroundings_->Told();
  if (told == nullptr) return;
  Record(*told);
  surroundings_->KeepTrace();
  ended_.store(true, std::memory_order_release);
}

bool FailureRecord::CheckEnded(Code* code) {
  if (!ended()) {
    const std::lock_guard<std::mutex> lock(mu_);
    CheckTold();
  }
  if (!ended()) return false;
  *code = fatal_.verdict.code;
  return true;
}

void FailureRecord::Refuse(const Status& status) {
  ErrorRecord record;
  record.failed = true;
  record.verdict.code = status.code();
  record.verdict.rank = rank_;
  record.verdict.message = status.message();
  record.verdict.os_errno = status.os_errno();
  record.verdict.advice = RefusalAdvice(status.code());
  const std::lock_guard<std::mutex> lock(mu_);
  refusals_.push_back(std::move(record));
  if (refusals_.size() > kKeptRefusals) refusals_.pop_front();
}

const ErrorRecord& FailureRecord::Latest() {
  const std::lock_guard<std::mutex> lock(mu_);
  CheckTold();
  return ended() ? fatal_ : refusals_.back();
}

}  // namespace annulus
