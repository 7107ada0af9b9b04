#include "collectives/control/redial.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace annulus {
namespace {

// The first attempt to connect, and the pause after one that failed. A first packet that is lost costs no more than
// that; each further attempt may take twice as long, up to a limit, for paths with long round trips.
constexpr Nanoseconds kDialTime = 400 * kMillisecond;
constexpr Nanoseconds kLongestDialTime = 6400 * kMillisecond;
constexpr Nanoseconds kDialPause = 50 * kMillisecond;
// A connection that lived for less than this is made again after a pause, which doubles up to the longest.
constexpr Nanoseconds kShortLife = kSecond;
constexpr Nanoseconds kLongestPause = kSecond;

}  // namespace

Redial::Redial(ControlNet* net, Handlers handlers)
    : net_(net), handlers_(std::move(handlers)), pause_(net->MakeTimer()) {}

void Redial::Begin(Nanoseconds time) {
  Stop();
  const bool short_lived = connected_at_ && net_->Now() - *connected_at_ < kShortLife;
  first_pause_ = short_lived ? std::clamp(2 * first_pause_, kDialPause, kLongestPause) : 0;
  until_ = net_->After(time);
  dial_time_ = kDialTime;
  first_pause_ == 0 ? Dial() : pause_->Set(first_pause_, [this] { Dial(); });
}

void Redial::Stop() {
  until_ = kNoDeadline;
  pause_->Cancel();
  net_->CancelDial();
}

void Redial::Dial() {
  net_->Dial(door_, dial_time_,
             [this](const Status& status, SealedFd connection) { OnDialled(status, std::move(connection)); });
}

void Redial::OnDialled(const Status& status, SealedFd connection) {
  awaits_rank_0_ = status.code() == Code::kTimeout && status.os_errno() == 0;
  if (status.ok() && handlers_.on_connected(std::move(connection))) {
    connected_at_ = net_->Now();
    return Stop();
  }
  // Nobody listens there, or somebody else does, of another run, as after a restart of the job: the process is gone. Or
  // the judge has this rank's goodbye. An error of authentication may be a broken connection's.
  const bool is_another = status.code() == Code::kProtocol || status.code() == Code::kMismatch;
  if (status.os_errno() == ECONNREFUSED || is_another) {
    Stop();
    return handlers_.on_refused();
  }
  if (net_->Now() >= until_) {
    Stop();
    return handlers_.on_late(status);
  }
  dial_time_ = std::min(2 * dial_time_, kLongestDialTime);
  pause_->Set(kDialPause, [this] { Dial(); });
}

}  // namespace annulus
