#include "collectives/comm/failure_record.h"

#include <new>

namespace annulus {

void FailureRecord::Record(const Verdict& verdict) {
  try {
    verdict_ = verdict;
    if (verdict.call.sequence == 0) verdict_.call = surroundings_->Interrupted();
    surroundings_->Announce(verdict_);
  } catch (const std::bad_alloc&) {  // It ends the communicator without words.
    verdict_.code = verdict.code;
  }
}

void FailureRecord::End(const Verdict& verdict) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (ended()) return;
  Record(verdict);
  ended_.store(true, std::memory_order_release);
}

void FailureRecord::Close() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (ended()) return;
  verdict_.code = Code::kAborted;
  verdict_.rank = rank_;
  verdict_.message = "this rank destroyed the communicator";
  verdict_.advice = "Wait for all work before annulus_comm_destroy.";
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
  *code = verdict_.code;
  return true;
}

}  // namespace annulus
