#include "launcher/job/judgement.h"

#include <utility>

namespace annulus {

void Judgement::Add(Failure failure) {
  if (failures_.empty()) deadline_ = DeadlineAfter(patience_);
  failures_.push_back(std::move(failure));
}

bool Judgement::Due(bool any_running, const std::function<bool(int rank)>& is_running) {
  const bool awaits = AwaitsCulprit(failures_, is_running);
  const bool over = Now() >= deadline_;
  if (!any_running || (awaits_culprit_ && !awaits) || (over && (awaits_culprit_ || !awaits))) return true;
  if (over) {
    awaits_culprit_ = true;
    deadline_ = DeadlineAfter(kCulpritTime);
  }
  return false;
}

}  // namespace annulus
