#include "collectives/algorithms/shared_fold/fold_agreement.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "base/log.h"

namespace annulus {

Status FoldAgreement::Await(uint64_t number, Deadline until) {
  std::unique_lock<std::mutex> lock(mu_);
  const auto is_known = [&] { return has_ended_ || is_decided_ || number <= driven_ + kMostAhead; };
  while (!is_known()) {
    const Nanoseconds now = Now();
    if (now >= until) {
      return {Code::kTimeout, "the " + std::to_string(kMostAhead) +
                                  " large calls that streams may have under way did not go on before the deadline"};
    }
    changed_.wait_for(lock, std::chrono::nanoseconds(std::min(until - now, kSecond)));
  }
  return has_ended_ ? Status(Code::kAborted, "the communicator has ended") : Status();
}

bool FoldAgreement::IsFold(uint64_t number) const {
  const std::lock_guard<std::mutex> lock(mu_);
  return number >= first_fold_;
}

FoldAgreement::Task FoldAgreement::NextTask() const {
  const std::lock_guard<std::mutex> lock(mu_);
  if (is_decided_) return Task::kNone;
  if (state_ == State::kNew) return Task::kShare;
  return state_ == State::kHasMemory && !places_.empty() ? Task::kReach : Task::kNone;
}

void FoldAgreement::Done(Task task, const Status& status, const SharedPlace& memory) {
  const std::lock_guard<std::mutex> lock(mu_);
  // What comes after a failure of the driver may be that it is not asked each time.
  const bool may_pass = task == Task::kReach && (status.code() == Code::kSystem || tries_ > 0);
  if (!status.ok() && tries_ == 0) why_ = status.message();
  if (!status.ok() && may_pass && ++tries_ < kMostTries) return;
  if (!status.ok()) Log(LogLevel::kInfo, -1, "calls in streams go through host memory: %s", why_.c_str());
  if (task == Task::kShare) memory_ = memory;
  state_ = !status.ok() ? State::kCannot : task == Task::kShare ? State::kHasMemory : State::kReachesAll;
}

void FoldAgreement::End() {
  const std::lock_guard<std::mutex> lock(mu_);
  has_ended_ = true;
  changed_.notify_all();
}

FoldAgreement::Word FoldAgreement::Say(uint64_t number) const {
  const std::lock_guard<std::mutex> lock(mu_);
  return {memory_, number, number >= first_fold_ ? uint64_t{1} : 0, state_};
}

void FoldAgreement::Hear(uint64_t number, std::span<const Word> words) {
  const std::lock_guard<std::mutex> lock(mu_);
  driven_ = number;
  const auto is_same = [number](const Word& word) { return word.number == number; };
  if (!is_decided_ && std::ranges::all_of(words, is_same)) Decide(words);
  changed_.notify_all();
}

void FoldAgreement::Decide(std::span<const Word> words) {
  const auto cannot = [](const Word& word) { return word.state >= State::kCannot; };
  const auto reaches_all = [](const Word& word) { return word.state == State::kReachesAll; };
  const auto has_memory = [](const Word& word) { return word.state != State::kNew; };
  if (std::ranges::any_of(words, cannot)) {
    is_decided_ = true;
  } else if (std::ranges::all_of(words, reaches_all)) {
    is_decided_ = true;
    first_fold_ = driven_ + kMostAhead + 1;
    Log(LogLevel::kInfo, -1, "large calls in streams are done in memory that the ranks share, from number %llu on",
        static_cast<unsigned long long>(first_fold_));
  } else if (places_.empty() && std::ranges::all_of(words, has_memory)) {
    for (const Word& word : words) places_.push_back(word.memory);
  }
}

void FoldAgreement::Never() {
  const std::lock_guard<std::mutex> lock(mu_);
  is_decided_ = true;
  changed_.notify_all();
}

}  // namespace annulus
