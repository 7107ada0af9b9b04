#include "tests/collectives/control/sim_control_path.h"

#include <algorithm>
#include <utility>

namespace annulus {
namespace {

constexpr Nanoseconds kLeastLatency = 20 * kMicrosecond;
constexpr Nanoseconds kMostLatency = 200 * kMicrosecond;
constexpr Nanoseconds kFirstResend = 200 * kMillisecond;
// When an end gives up a silent connection: 3 s after the last word, which is up to a second old (control_stream.cc).
constexpr Nanoseconds kGiveUp = 2 * kSecond;
constexpr Nanoseconds kGiveUpSpread = kSecond;
constexpr Nanoseconds kKeepalive = kSecond;  // Between two of an idle end.

}  // namespace

// What waits to arrive may hold on to its line.
SimControlPath::~SimControlPath() {
  for (const auto& weak : lines_) {
    if (const auto line = weak.lock()) line->Forget();
  }
}

void SimControlPath::CloseAll(int side) {
  for (const auto& weak : lines_) {
    if (const auto line = weak.lock()) line->Close(side);
  }
}

std::shared_ptr<SimControlLine> SimControlPath::Connect() {
  auto line = std::make_shared<SimControlLine>(this);
  lines_.push_back(line);
  return line;
}

bool SimControlPath::Garbles() const {
  return std::ranges::any_of(
      cuts_, [this](const SimCut& cut) { return cut.kind == SimCut::Kind::kGarbled && cut.message == messages_; });
}

int SimControlPath::Begin() {
  CutAt(messages_, false);
  return messages_++;
}

void SimControlPath::OnArrived(int message) { CutAt(message, true); }

void SimControlPath::CutAt(int message, bool after) {
  for (const SimCut& cut : cuts_) {
    if (cut.message == message && cut.after == after) Cut(cut);
  }
}

void SimControlPath::Cut(const SimCut& cut) {
  ++cuts_made_;
  cut_at_ = std::min(cut_at_, clock_->now());
  if (cut.kind == SimCut::Kind::kGarbled) return;
  const Deadline until = cut.duration == kNoDeadline ? kNoDeadline : clock_->now() + cut.duration;
  const bool silence = cut.kind == SimCut::Kind::kSilence || cut.kind == SimCut::Kind::kNoRoute;
  if (silence) silent_until_ = std::max(silent_until_, until);
  if (cut.kind == SimCut::Kind::kNoRoute) no_route_until_ = std::max(no_route_until_, until);
  for (const auto& weak : lines_) {
    const auto line = weak.lock();
    if (line == nullptr) continue;
    const bool is_reset = cut.kind == SimCut::Kind::kReset;
    is_reset ? line->Reset(cut.first, cut.duration) : line->FallSilent(!silence);
  }
}

void SimControlLine::Listen(int side, OnMessage on_message, OnEnd on_end) {
  ends_[side].on_message = std::move(on_message);
  ends_[side].on_end = std::move(on_end);
  path_->clock().At(path_->clock().now(), [self = shared_from_this(), side] { self->GiveOn(side); });
}

void SimControlLine::Send(int side, const EncodedMessage& message) {
  const EncodedMessage sent = path_->Garbles() ? std::make_shared<const std::string>() : message;
  Pass(side, [this, side, sent] {
    ends_[1 - side].early.push_back(sent);
    GiveOn(1 - side);
  });
}

void SimControlLine::Pass(int side, std::function<void()> arrive) {
  End& end = ends_[side];
  if (!end.open || end.finished) return;
  const int message = path_->Begin();
  end.sent.push_back([this, message, arrive = std::move(arrive)] {
    arrive();
    path_->OnArrived(message);
  });
  // Whoever sends over a connection that the other has forgotten is told so, if the path carries the answer.
  if (broken_) return silent() ? ProbeOnceHeard(side) : Tell(side, ControlEnd::kReset, 2 * kMostLatency);
  SimClock& clock = path_->clock();
  end.last_arrival = std::max(end.last_arrival, clock.now() + clock.Between(kLeastLatency, kMostLatency));
  clock.At(end.last_arrival, [self = shared_from_this(), side] { self->Deliver(side, kFirstResend); });
}

// Delivers the oldest message that has not arrived, so all arrive in order.
void SimControlLine::Deliver(int from, Nanoseconds resend) {
  End& end = ends_[from];
  if (broken_ || end.sent.empty()) return;
  if (silent()) {
    if (silent_for_ever()) return;
    end.last_arrival = std::max(end.last_arrival, path_->clock().now() + resend);
    path_->clock().At(path_->clock().now() + resend,
                      [self = shared_from_this(), from, resend] { self->Deliver(from, 2 * resend); });
    return;
  }
  const std::function<void()> arrive = std::move(end.sent.front());
  end.sent.pop_front();
  if (ends_[1 - from].open) arrive();
}

// The other side hears of an orderly end once all has arrived there.
void SimControlLine::Finish(int side) {
  Pass(side, [this, side] { TellNow(1 - side, ControlEnd::kOrderly); });
  ends_[side].finished = true;
}

void SimControlLine::Close(int side) {
  End& end = ends_[side];
  if (!end.open) return;
  const bool unread = !ends_[1 - side].sent.empty() || !end.early.empty();
  if (unread) {
    broken_ = true;
    silent() ? ProbeOnceHeard(1 - side) : Tell(1 - side, ControlEnd::kReset, kMostLatency);
  } else if (!end.finished) {
    Finish(side);
  }
  end.open = false;
  end.on_message = nullptr;
  end.on_end = nullptr;
}

// A silent path loses the reset too: the other side is told so when it sends.
void SimControlLine::Abandon(int side) {
  if (!ends_[side].open) return;
  broken_ = true;
  if (!silent()) Tell(1 - side, ControlEnd::kReset, kMostLatency);
  ends_[side].open = false;
  ends_[side].on_message = nullptr;
  ends_[side].on_end = nullptr;
}

void SimControlLine::Forget() {
  for (End& end : ends_) end = {};
}

void SimControlLine::Reset(int first, Nanoseconds lag) {
  if (broken_) return;
  broken_ = true;
  Tell(first, ControlEnd::kReset, 0);
  Tell(1 - first, ControlEnd::kReset, lag);
}

void SimControlLine::FallSilent(bool forgotten) {
  forgotten_ = forgotten_ || forgotten;
  for (const int side : {0, 1}) {
    SimClock& clock = path_->clock();
    clock.At(clock.now() + kGiveUp + clock.Between(0, kGiveUpSpread), [self = shared_from_this(), side] {
      if (!self->silent()) return;
      self->TellNow(side, ControlEnd::kSilent);
      self->ProbeOnceHeard(1 - side);
    });
  }
}

// An end that has given up answers the other's next keepalive by a reset.
void SimControlLine::ProbeOnceHeard(int side) {
  SimClock& clock = path_->clock();
  if (!ends_[side].open || ends_[side].ended || silent_for_ever()) return;
  clock.At(clock.now() + clock.Between(0, kKeepalive), [self = shared_from_this(), side] {
    self->silent() ? self->ProbeOnceHeard(side) : self->TellNow(side, ControlEnd::kReset);
  });
}

void SimControlLine::Tell(int side, ControlEnd how, Nanoseconds wait) {
  path_->clock().At(path_->clock().now() + wait, [self = shared_from_this(), side, how] { self->TellNow(side, how); });
}

void SimControlLine::TellNow(int side, ControlEnd how) {
  End& end = ends_[side];
  if (!end.open || end.ended) return;
  // Whoever hears of an orderly end closes its direction too.
  if (how == ControlEnd::kOrderly && !end.finished) Finish(side);
  if (how != ControlEnd::kOrderly) broken_ = true;
  end.ended = how;
  end.ended_at = path_->clock().now();
  GiveOn(side);
}

Nanoseconds SimControlLine::silent_for(int side) const {
  const End& end = ends_[side];
  if (end.ended != ControlEnd::kSilent) return 0;
  return kGiveUp + kGiveUpSpread + path_->clock().now() - end.ended_at;
}

void SimControlLine::GiveOn(int side) {
  End& end = ends_[side];
  const auto self = shared_from_this();  // A handler may let go of this line.
  const Nanoseconds awake_at = path_->awake_at(side);
  if (path_->clock().now() < awake_at) return path_->clock().At(awake_at, [self, side] { self->GiveOn(side); });
  while (end.on_message && !end.early.empty()) {
    const EncodedMessage message = std::move(end.early.front());
    end.early.pop_front();
    const OnMessage on_message = end.on_message;
    on_message(message);
  }
  if (!end.ended || !end.on_end) return;
  end.open = false;
  end.on_message = nullptr;
  std::exchange(end.on_end, nullptr)(*end.ended);
}

}  // namespace annulus
