// Answers to the judge's messages, and the verdicts that a member reaches when the judge is gone.
#include "collectives/control/control_member.h"

#include <cerrno>

#include "base/log.h"
#include "collectives/control/arbiter_text.h"

namespace annulus {

// One attempt to connect, and the pause after one that failed.
static constexpr Nanoseconds kDialTime = 400 * kMillisecond;
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
  judge_host_ = HostText(connection.peer);
  return session_.Open(connection.fd);
}

void ControlMember::Report(const Status& failure, const Call& call) {
  if (judge_left_) return config_.conclude(ArbiterLeftVerdict(config_.rank, call));
  reported_ = call;
  ByteWriter out;
  WriteStatus(failure, &out);
  WriteCall(call, &out);
  session_.Send(MessageType::kReport, out.bytes());
  path_until_ = config_.net->After(kPathGrace);
  WatchPath();
}

void ControlMember::WatchPath() {
  path_check_->Set(kPathCheckInterval, [this] {
    if (config_.net->Now() >= path_until_) return;
    if (!session_.delivered()) config_.Heard();
    WatchPath();
  });
}

void ControlMember::Doubt() {
  if (!judge_left_) session_.Send(MessageType::kDoubt, {});
}

void ControlMember::Settle(const Verdict& verdict) {
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
}

void ControlMember::Take(MessageType type, std::span<const std::byte> body) {
  config_.Heard();
  switch (type) {
    case MessageType::kQuery: {
      if (!body.empty()) return Broken("a query with a body");
      ByteWriter out;
      WriteActivity(config_.activity->Read(), &out);
      return session_.Send(MessageType::kAnswer, out.bytes());
    }
    case MessageType::kVerdict:
      return TakeVerdict(body);
    case MessageType::kDoor:
      return TakeDoor(body);
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

void ControlMember::TakeDoor(std::span<const std::byte> body) {
  ByteReader in(body);
  const int port = in.U16();
  if (!in.done() || port == 0) return Broken("a door that cannot be read");
  const Status status = MakeEndpoint(judge_host_, port, &door_);
  if (!status.ok()) Log(LogLevel::kInfo, config_.rank, "no way back to rank 0: %s", status.message().c_str());
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
  lost_errno_ = end == ControlEnd::kSilent ? cause.os_errno() : 0;
  redial_until_ = config_.net->After(kRedialTime);
  Dial();
}

void ControlMember::Dial() {
  config_.net->Dial(door_, kDialTime, [this](const Status& status, int fd) { Dialled(status, fd); });
}

void ControlMember::Dialled(const Status& status, int fd) {
  if (status.ok() && session_.Resume(fd).ok()) {
    redial_until_ = kNoDeadline;
    return config_.Heard();
  }
  // Nobody listens there, or somebody else does: the process is gone. Or the judge has this rank's goodbye.
  const bool is_gone = status.os_errno() == ECONNREFUSED || status.code() == Code::kProtocol;
  if (is_gone) return End(DeathVerdict(0, 0));
  if (config_.net->Now() >= redial_until_) return End(DeathVerdict(0, lost_errno_ != 0 ? lost_errno_ : ETIMEDOUT));
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
