#include "transport/verbs/verbs_stopping.h"

#include <algorithm>
#include <utility>

namespace annulus {
namespace {

// Acknowledgements raise no event. Who waits for one looks again after this time.
constexpr Nanoseconds kLook = 100 * kMillisecond;

}  // namespace

void VerbsStopping::Begin(uint32_t failure, std::string why) {
  state_ = State::kDraining;
  failure_ = failure;
  why_ = std::move(why);
  connection_->Drain();
}

VerbsStopping::Result VerbsStopping::Step(VerbsStream* stream) {
  if (state_ == State::kDraining) {
    connection_->PollAll();
    if (!connection_->Drained()) return Result::kWaits;
    if (!connection_->StopForGood()) return Result::kRefused;
    stream->Say({failure_, connection_->receiver().whole_slices()});
    answered_ = Now();
    state_ = State::kTold;
    return Result::kMoved;
  }
  if (state_ != State::kTold) return Result::kWaits;
  if (stream->stop() != nullptr) {
    if (!connection_->sender().BeginCarrying(stream->stop()->slices)) return Result::kWrongCount;
    state_ = State::kStopped;
    return Result::kMoved;
  }
  const Nanoseconds now = Now();
  if (stream->acknowledged()) answered_ = now;
  return now - answered_ > limit_ ? Result::kGaveUp : Result::kWaits;
}

bool VerbsStopping::Arm(VerbsStream* stream) {
  if (state_ == State::kStopped) return true;
  if (state_ == State::kDraining || stream->stop() != nullptr || stream->rung()) return false;
  stream->Wait();
  alarm_.Set(std::min(kLook, limit_));
  return true;
}

}  // namespace annulus
