// Answers to the judge's messages, and the verdicts that a member reaches when the judge is gone.
#include "collectives/control/control_member.h"

#include <cerrno>
#include <utility>

#include "base/log.h"
#include "collectives/control/arbiter_text.h"
#include "transport/security/door.h"

namespace annulus {

static constexpr Nanoseconds kPathCheckInterval = 250 * kMillisecond;

// Not rank 0 is at fault, but this rank.
static Verdict OwnLimit(const Status& status) {
  Verdict verdict;
  verdict.code = status.code();
  verdict.rank = status.peer();
  verdict.message = status.message();
  verdict.advice = AdviceFor(status.code());
  verdict.os_errno = status.os_errno();
  return verdict;
}

ControlMember::ControlMember(const ControlRoleConfig& config)
    : config_(config),
      session_(config.net, {[this](MessageType type, std::span<const std::byte> body) { OnMessage(type, body); },
                            [this](ControlEnd end, const Status& cause) { OnClosed(end, cause); }}),
      redial_(config.net, {[this](SealedFd connection) { return Connected(std::move(connection)); },
                           [this] { OnRefused(); }, [this](const Status& last) { OnRedialledInVain(last); }}),
      path_check_(config.net->MakeTimer()) {}

Status ControlMember::Open(ControlConnections connections) {
  ControlConnection connection = connections.Take(0);
  if (connections.door().port > 0) {
    StreamEndpoint door;
    const Status status = MakeEndpoint(HostText(connection.peer), connections.door().port, &door);
    if (!status.ok()) Log(LogLevel::kInfo, config_.rank, "no way back to rank 0: %s", status.message().c_str());
    if (status.ok()) redial_.set_door(door);
  }
  if (connection.fd >= 0) return session_.Open(connection.TakeFd());
  if (!redial_.has_door())
    return Status(Code::kPeerLost, "the control connection to rank 0 broke, and its door is not known", 0, ETIMEDOUT);
  redial_.Begin(kSilenceRedialTime);
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
    if (session_.delivered() || (redial_.active() && redial_.awaits_rank_0())) undelivered_since_ = now;
    NotePath(now - undelivered_since_ >= kUndelivered);
    if (!session_.delivered() && now < path_until_) config_.Heard();
    const bool unsure = now - undelivered_since_ >= kUndelivered || now - last_word_ >= kNoWord;
    if (unsure && !redial_.active() && session_.open() && redial_.has_door()) {
      redial_.Begin(kRedialTime);  // Beside the connection that there is.
    } else if (session_.delivered() && now - last_word_ >= kUndelivered) {
      session_.Probe();  // Is it the path that is silent, or rank 0?
    }
    WatchPath();
  });
}

void ControlMember::NotePath(bool is_silent) const {
  if (config_.path_is_silent != nullptr) config_.path_is_silent->store(is_silent);
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
  if (!session_.open() && !redial_.active()) return on_gone();
  on_gone_ = std::move(on_gone);
  ByteWriter out;
  WriteActivity(config_.activity->Read(), &out);
  session_.Send(MessageType::kGoodbye, out.bytes());
  session_.Finish();
  BeginWatch();
}

void ControlMember::OnMessage(MessageType type, std::span<const std::byte> body) {
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
      return OnVerdict(body);
    case MessageType::kGoodbye:
      return OnGoodbye();
    default:
      return Broken("a message of type " + std::to_string(static_cast<int>(type)));
  }
}

void ControlMember::OnVerdict(std::span<const std::byte> body) {
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

void ControlMember::OnGoodbye() {
  // Closing at once lets the judge leave without waiting for us.
  judge_left_ = true;
  Close();
  if (config_.judge_lost) config_.judge_lost();
  if (reported_) config_.conclude(ArbiterLeftVerdict(config_.rank, *reported_));
  if (on_gone_) on_gone_();
}

void ControlMember::OnClosed(ControlEnd end, const Status& cause) {
  if (end == ControlEnd::kProtocol) {
    if (!session_.open()) return End(BrokenMessageVerdict(0, cause.message()));
    if (departing_) return;
    if (config_.judge_lost) config_.judge_lost();
    return Broken(cause.message());  // Rank 0 tells it to all.
  }
  if (end == ControlEnd::kOrderly || !redial_.has_door())
    return End(end == ControlEnd::kSilent ? LostPathVerdict({config_.rank}) : DeathVerdict(0));
  Log(LogLevel::kInfo, config_.rank, "the control connection to rank 0 broke; dialling again");
  const bool fell_silent = end == ControlEnd::kSilent;
  const Nanoseconds last_heard = config_.net->Now() - session_.silent_for();
  given_up_from_ = fell_silent ? last_heard + kLeastPatience : kNoDeadline;
  redial_.Begin(fell_silent ? kSilenceRedialTime : kRedialTime);
}

bool ControlMember::Connected(SealedFd connection) {
  if (!session_.Resume(std::move(connection)).ok()) return false;
  undelivered_since_ = last_word_ = config_.net->Now();
  given_up_from_ = kNoDeadline;
  NotePath(false);
  config_.Heard();
  return true;
}

// Rank 0 may have left because it has given this rank up: then all others know that they have lost each other. Before
// it can have done that, a refusal shows that its process has ended. But where all has arrived over the connection that
// there is, as does a probe before each attempt, the network lets nobody else in, and WatchPath goes on.
void ControlMember::OnRefused() {
  if (session_.delivered()) return;
  const bool may_be_given_up = config_.net->Now() >= given_up_from_;
  End(may_be_given_up ? LostPathVerdict({config_.rank}) : DeathVerdict(0));
}

void ControlMember::OnRedialledInVain(const Status& last) {
  if (session_.open()) return;
  if (redial_.awaits_rank_0()) return redial_.Begin(kRedialTime);
  if (IsOutOfDescriptors(last.os_errno())) return End(OwnLimit(last));
  End(LostPathVerdict({config_.rank}));
}

void ControlMember::Close() {
  redial_.Stop();
  path_check_->Cancel();
  session_.Close();
}

void ControlMember::End(const Verdict& verdict) {
  Close();
  if (departing_) {
    if (on_gone_) on_gone_();
    return;
  }
  if (config_.judge_lost) config_.judge_lost();
  config_.conclude(verdict);
}

}  // namespace annulus
