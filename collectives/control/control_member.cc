// Answers to the judge's messages, and the verdicts that a member reaches when the judge is gone.
#include "collectives/control/control_member.h"

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "collectives/control/arbiter_text.h"

namespace annulus {

// The first attempt to connect, and the pause after one that failed. A first packet that is lost costs no more than
// that; each further attempt may take twice as long, up to a limit, for paths with long round trips.
static constexpr Nanoseconds kDialTime = 400 * kMillisecond;
static constexpr Nanoseconds kLongestDialTime = 6400 * kMillisecond;
static constexpr Nanoseconds kDialPause = 50 * kMillisecond;

static constexpr Nanoseconds kPathCheckInterval = 250 * kMillisecond;

ControlMember::ControlMember(const ControlRoleConfig& config)
    : config_(config),
      session_(config.net, {[this](MessageType type, std::span<const std::byte> body) { Take(type, body); },
                            [this](ControlEnd end, const Status& cause) { Closed(end, cause); }}),
      retry_(config.net->MakeTimer()),
      path_check_(config.net->MakeTimer()) {}

ControlMember::~ControlMember() { config_.net->CancelDial(); }

Status ControlMember::Open(ControlConnections connections) {
  const ControlConnection connection = connections.Take(0);
  if (connections.door().port > 0) {
    const Status status = MakeEndpoint(HostText(connection.peer), connections.door().port, &door_);
    if (!status.ok()) Log(LogLevel::kInfo, config_.rank, "no way back to rank 0: %s", status.message().c_str());
  }
  if (connection.fd >= 0) return session_.Open(connection.fd);
  Redial(ETIMEDOUT, kSilenceRedialTime);
  return Status();
}

void ControlMember::Report(const Status& failure, const Call& call) {
  if (judge_left_) return config_.conclude(ArbiterLeftVerdict(config_.rank, call));
  reported_ = call;
  ByteWriter out;
  WriteStatus(failure, &out);
  WriteCall(call, &out);
  session_.Send(MessageType::kReport, out.bytes());
  BeginWatch();
}

void ControlMember::BeginWatch() {
  path_until_ = config_.net->After(kPathGrace);
  undelivered_since_ = last_word_ = config_.net->Now();
  WatchPath();
}

void ControlMember::WatchPath() {
  path_check_->Set(kPathCheckInterval, [this] {
    const Nanoseconds now = config_.net->Now();
    if (departing_ && now >= path_until_) return;
    if (session_.delivered()) undelivered_since_ = now;
    if (!session_.delivered() && now < path_until_) config_.Heard();
    const bool dials = redial_until_ != kNoDeadline;
    const bool unsure = now - undelivered_since_ >= kUndelivered || now - last_word_ >= kNoWord;
    if (unsure && !dials && session_.open() && HasAddress(door_)) {
      Redial(ETIMEDOUT, kRedialTime);  // Beside the connection that there is.
    } else if (session_.delivered() && now - last_word_ >= kUndelivered) {
      session_.Probe();  // Is it the path that is silent, or rank 0?
    }
    WatchPath();
  });
}

void ControlMember::Doubt() {
  if (!judge_left_) session_.Send(MessageType::kDoubt, {});
}

void ControlMember::Settle(const Verdict& verdict) {
  path_check_->Cancel();
  ByteWriter out;
  WriteVerdict(verdict, &out);
  session_.Send(MessageType::kVerdict, out.bytes());
}

void ControlMember::Depart(std::function<void()> on_gone) {
  departing_ = true;
  if (!session_.open() && redial_until_ == kNoDeadline) return on_gone();
  on_gone_ = std::move(on_gone);
  ByteWriter out;
  WriteActivity(config_.activity->Read(), &out);
  session_.Send(MessageType::kGoodbye, out.bytes());
  session_.Finish();
  BeginWatch();
}

void ControlMember::Take(MessageType type, std::span<const std::byte> body) {
  config_.Heard();
  last_word_ = config_.net->Now();
  switch (type) {
    case MessageType::kQuery: {
      ByteReader in(body);
      ByteWriter out;
      out.U32(in.U32());
      if (!in.done()) return Broken("a query that cannot be read");
      WriteActivity(config_.activity->Read(), &out);
      return session_.Send(MessageType::kAnswer, out.bytes());
    }
    case MessageType::kVerdict:
      return TakeVerdict(body);
    case MessageType::kGoodbye:
      return TakeGoodbye();
    default:
      return Broken("a message of type " + std::to_string(static_cast<int>(type)));
  }
}

void ControlMember::TakeVerdict(std::span<const std::byte> body) {
  ByteReader in(body);
  Verdict verdict;
  const auto is_rank = [this](int r) { return r >= Status::kNoRank && r < config_.nranks; };
  if (!ReadVerdict(&in, &verdict) || !in.done() || !is_rank(verdict.rank) || !is_rank(verdict.peer))
    return Broken("a verdict that cannot be read");
  path_check_->Cancel();
  config_.conclude(verdict);
}

void ControlMember::Broken(const std::string& what) {
  const Verdict verdict = BrokenMessageVerdict(0, what);
  Settle(verdict);
  config_.conclude(verdict);
}

void ControlMember::TakeGoodbye() {
  // Closing at once lets the judge leave without waiting for us.
  judge_left_ = true;
  session_.Close();
  if (config_.judge_lost) config_.judge_lost();
  if (reported_) config_.conclude(ArbiterLeftVerdict(config_.rank, *reported_));
  if (on_gone_) on_gone_();
}

void ControlMember::Closed(ControlEnd end, const Status& cause) {
  if (end == ControlEnd::kProtocol) return End(BrokenMessageVerdict(0, cause.message()));
  if (end == ControlEnd::kOrderly || !HasAddress(door_)) return End(DeathVerdict(0, cause.os_errno()));
  Log(LogLevel::kInfo, config_.rank, "the control connection to rank 0 broke; dialling again");
  const bool silent = end == ControlEnd::kSilent;
  Redial(silent ? cause.os_errno() : 0, silent ? kSilenceRedialTime : kRedialTime);
}

void ControlMember::Redial(int os_errno, Nanoseconds time) {
  lost_errno_ = os_errno;
  redial_until_ = config_.net->After(time);
  dial_time_ = kDialTime;
  Dial();
}

void ControlMember::Dial() {
  config_.net->Dial(door_, dial_time_, [this](const Status& status, int fd) { Dialled(status, fd); });
}

void ControlMember::Dialled(const Status& status, int fd) {
  if (status.ok() && session_.Resume(fd).ok()) {
    redial_until_ = kNoDeadline;
    undelivered_since_ = last_word_ = config_.net->Now();
    return config_.Heard();
  }
  // Nobody listens there, or somebody else does: the process is gone. Or the judge has this rank's goodbye.
  const bool is_gone = status.os_errno() == ECONNREFUSED || status.code() == Code::kProtocol;
  if (is_gone) return End(DeathVerdict(0, 0));
  const bool is_late = config_.net->Now() >= redial_until_;
  if (is_late && session_.open()) {
    redial_until_ = kNoDeadline;
    return;
  }
  if (is_late) return End(DeathVerdict(0, lost_errno_ != 0 ? lost_errno_ : ETIMEDOUT));
  dial_time_ = std::min(2 * dial_time_, kLongestDialTime);
  retry_->Set(kDialPause, [this] { Dial(); });
}

void ControlMember::End(const Verdict& verdict) {
  redial_until_ = kNoDeadline;
  session_.Close();
  if (departing_) {
    if (on_gone_) on_gone_();
    return;
  }
  if (config_.judge_lost) config_.judge_lost();
  config_.conclude(verdict);
}

}  // namespace annulus
