// Turns messages into events for the arbiter, and its decisions into messages.
#include "collectives/control/control_judge.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "collectives/control/arbiter_text.h"

namespace annulus {

ControlJudge::ControlJudge(const ControlRoleConfig& config)
    : config_(config), arbiter_(config.nranks), sessions_(config.nranks), timer_(config.net->MakeTimer()) {}

Status ControlJudge::Open(ControlConnections connections) {
  for (int rank = 1; rank < config_.nranks; ++rank) {
    sessions_[rank] = std::make_unique<ControlSession>(
        config_.net,
        ControlSession::Handlers{
            [this, rank](MessageType type, std::span<const std::byte> body) { OnMessage(rank, type, body); },
            [this, rank](ControlEnd end, const Status& cause) { OnClosed(rank, end, cause); }});
  }
  if (const int listener = connections.TakeListener(); listener >= 0) {
    const auto expects = [this](int visitor) { return visitor > 0 && !sessions_[visitor]->closed(); };
    const auto returned = [this](int visitor, SealedFd connection) { OnReturned(visitor, std::move(connection)); };
    ANNULUS_RETURN_IF_ERROR(config_.net->OpenDoor(listener, expects, returned));
    has_door_ = true;
  }
  for (int rank = 1; rank < config_.nranks; ++rank) {
    ControlConnection first = connections.Take(rank);
    if (first.fd >= 0) {
      ControlSession& session = *sessions_[rank];
      ANNULUS_RETURN_IF_ERROR(first.resumes ? session.Resume(first.TakeFd()) : session.Open(first.TakeFd()));
    } else {  // It broke after the rank had joined; or, without an address, the rank has been waited for in vain.
      Await(rank, 0, HasAddress(first.peer) ? kResetGrace : 0);
    }
  }
  SetTimer();
  return Status();
}

void ControlJudge::Report(const Status& failure, const Call& call) {
  arbiter_.Report(config_.rank, failure, call, config_.net->Now());
  Act();
}

void ControlJudge::Doubt() {
  arbiter_.Doubt(config_.net->Now());
  Act();
}

void ControlJudge::Settle(const Verdict& verdict) {
  arbiter_.Settled(config_.rank, verdict, config_.net->Now());
  Act();
}

// Ranks that are away have not heard the verdict, and the others may need the news that they are lost. Nobody else will
// tell them.
void ControlJudge::Depart(std::function<void()> on_gone) {
  leave_by_ = config_.net->After(kLongestLeave);
  if (absences_.any_ended() || (announced_ && absences_.deadline() != kNoDeadline)) {
    departure_ = std::move(on_gone);
  } else {
    Leave(std::move(on_gone));
  }
}

void ControlJudge::Leave(std::function<void()> on_gone) {
  timer_->Cancel();
  path_until_ = config_.net->After(kPathGrace);
  on_gone_ = std::move(on_gone);
  ByteWriter out;
  WriteActivity(config_.activity->Read(), &out);
  SendAll(MessageType::kGoodbye, out.bytes());
  for (const auto& session : sessions_) {
    if (session) session->Finish();
  }
  CheckGone();
}

bool ControlJudge::AllDelivered() const {
  return std::all_of(sessions_.begin(), sessions_.end(), [](const auto& session) {
    return session == nullptr || !session->open() || session->delivered();
  });
}

bool ControlJudge::AwaitsReturn() const {
  const Nanoseconds now = config_.net->Now();
  if (now >= leave_by_) return false;
  if (departure_) return true;  // After a pause, this may run before NotePause; Act leaves once nobody is away.
  if (now - returned_at_ < kReplayGrace || now < absences_.latest()) return true;
  const Deadline path_until = std::max(path_until_, returned_at_ + kPathGrace);
  return now < path_until && !AllDelivered();
}

void ControlJudge::OnMessage(int rank, MessageType type, std::span<const std::byte> body) {
  // The path to a rank that no question had reached carries again.
  if (absences_.has(rank) || given_up_.contains(rank)) Back(rank);
  given_up_.erase(rank);
  ByteReader in(body);
  if (!OnBody(rank, type, &in)) {
    arbiter_.Broken(rank, "one of type " + std::to_string(static_cast<int>(type)) + " that cannot be read",
                    config_.net->Now());
  }
  Act();
}

bool ControlJudge::OnBody(int rank, MessageType type, ByteReader* in) {
  const auto is_rank = [this](int r) { return r >= Status::kNoRank && r < config_.nranks; };
  Activity activity;
  Call call;
  Status failure;
  Verdict verdict;
  uint32_t question = 0;
  switch (type) {
    case MessageType::kReport:
      if (!ReadStatus(in, &failure) || !ReadCall(in, &call) || !in->done() || !is_rank(failure.peer())) return false;
      arbiter_.Report(rank, failure, call, config_.net->Now());
      return true;
    case MessageType::kAnswer:
      question = in->U32();
      if (!ReadActivity(in, &activity) || !in->done()) return false;
      arbiter_.Answer(rank, activity, config_.net->Now(), question);
      return true;
    case MessageType::kDoubt:
      if (!in->done()) return false;
      arbiter_.Doubt(config_.net->Now());
      return true;
    case MessageType::kVerdict:
      if (!ReadVerdict(in, &verdict) || !in->done() || !is_rank(verdict.rank) || !is_rank(verdict.peer)) return false;
      arbiter_.Settled(rank, verdict, config_.net->Now());
      return true;
    case MessageType::kGoodbye:
      if (!ReadActivity(in, &activity) || !in->done()) return false;
      arbiter_.Goodbye(rank, activity, config_.net->Now());
      sessions_[rank]->Close();
      CheckGone();
      return true;
    default:
      return false;
  }
}

void ControlJudge::OnClosed(int rank, ControlEnd end, const Status& cause) {
  const bool may_return = has_door_ && (end == ControlEnd::kReset || end == ControlEnd::kSilent);
  if (end == ControlEnd::kProtocol) {
    arbiter_.Broken(rank, cause.message(), config_.net->Now());
  } else if (may_return) {
    Await(rank, cause.os_errno(), end == ControlEnd::kReset ? kResetGrace : kSilenceGrace);
  } else if (end == ControlEnd::kOrderly && !announced_ && !on_gone_) {
    absences_.Begin(rank, 0, config_.net->After(kReadGrace), /*ended=*/true);
    arbiter_.Lost(rank);
  } else {
    Gone(rank, cause.os_errno());
  }
  Act();
  CheckGone();
}

void ControlJudge::OnReturned(int rank, SealedFd connection) {
  const Status resumed = sessions_[rank]->Resume(std::move(connection));
  if (!resumed.ok()) return Log(LogLevel::kInfo, 0, "rank %d: %s", rank, resumed.message().c_str());
  Log(LogLevel::kInfo, 0, "rank %d came back over another control connection", rank);
  returned_at_ = config_.net->Now();
  given_up_.erase(rank);
  Back(rank);
  Act();
}

void ControlJudge::Await(int rank, int os_errno, Nanoseconds grace) {
  if (arbiter_.investigating()) grace = std::min(grace, kPathGrace);
  absences_.Begin(rank, os_errno, config_.net->After(grace));
  arbiter_.Lost(rank);
}

void ControlJudge::Back(int rank) {
  absences_.End(rank);
  arbiter_.Found(rank, config_.net->Now());
}

void ControlJudge::Gone(int rank, int os_errno) {
  // When two ranks go in the same turn, the second one is news, as it is in a later turn.
  if (arbiter_.verdict() && !announced_ && !on_gone_) Announce();
  if (announced_) return TellLoss(rank, os_errno);
  os_errno == 0 ? arbiter_.Died(rank) : arbiter_.Unreachable(rank);
}

void ControlJudge::TellLoss(int rank, int os_errno) {
  if (on_gone_) return;  // A leaving rank no longer judges.
  const Verdict loss = os_errno == 0 ? DeathVerdict(rank) : LostPathVerdict({rank});
  ByteWriter out;
  WriteVerdict(loss, &out);
  SendAll(MessageType::kVerdict, out.bytes());
  config_.conclude(loss);
}

void ControlJudge::Act() {
  if (on_gone_) return;  // A leaving rank no longer judges.
  config_.Heard();
  NotePause(config_.net->Now());
  if (arbiter_.investigating()) absences_.Shorten(config_.net->After(kPathGrace));
  if (arbiter_.TakeQuery()) {
    ByteWriter out;
    out.U32(arbiter_.question());
    SendAll(MessageType::kQuery, out.bytes());
    arbiter_.Answer(config_.rank, config_.activity->Read(), config_.net->Now());
  }
  if (arbiter_.verdict() && !announced_) Announce();
  SetTimer();
  if (departure_ && absences_.deadline() == kNoDeadline) Leave(std::exchange(departure_, nullptr));
}

void ControlJudge::EndAbsences(Nanoseconds now) {
  while (const std::optional<Absences::Absence> absence = absences_.TakeOverdue(now)) {
    const bool unreachable = absence->os_errno != 0 && arbiter_.investigating();
    if (unreachable) given_up_.insert(absence->rank);
    unreachable ? arbiter_.GiveUp(absence->rank, now) : Gone(absence->rank, absence->os_errno);
  }
}

// The kernel of a process that is stopped acknowledges what was sent to it; a path that loses packets does not.
void ControlJudge::FindUnheard(Nanoseconds now) {
  if (!arbiter_.investigating() || now < arbiter_.answers_due()) return;
  for (int rank = 1; rank < config_.nranks; ++rank) {
    const bool unheard = arbiter_.awaits(rank) && sessions_[rank]->open() && !sessions_[rank]->delivered();
    if (unheard && has_door_ && !absences_.has(rank) && !given_up_.contains(rank)) Await(rank, ETIMEDOUT, kPathGrace);
  }
}

void ControlJudge::Announce() {
  announced_ = true;
  ByteWriter out;
  WriteVerdict(*arbiter_.verdict(), &out);
  SendAll(MessageType::kVerdict, out.bytes());  // First: this rank may exit once it knows.
  config_.conclude(*arbiter_.verdict());
}

void ControlJudge::SendAll(MessageType type, const std::string& body) {
  for (const auto& session : sessions_) {
    if (session) session->Send(type, body);
  }
}

// While a rank is away the timer runs often, so that a pause shows.
void ControlJudge::SetTimer() {
  const Nanoseconds now = config_.net->Now();
  due_ = std::min(arbiter_.deadline(), absences_.deadline());
  if (due_ == kNoDeadline) return;
  if (absences_.deadline() != kNoDeadline) due_ = std::min(due_, now + Arbiter::kLateTick);
  timer_->Set(std::max<Nanoseconds>(due_ - now, 0), [this] { TimeIsUp(); });
}

void ControlJudge::NotePause(Nanoseconds now) {
  if (due_ != kNoDeadline && now - due_ > Arbiter::kLateTick) absences_.Lengthen(now + kReplayGrace);
}

// A rank may have come back, and an answer may have arrived, while this process was paused.
void ControlJudge::TimeIsUp() {
  const Nanoseconds now = config_.net->Now();
  NotePause(now);
  FindUnheard(now);
  EndAbsences(now);
  arbiter_.Tick(now);
  Act();
}

void ControlJudge::CheckGone() {
  if (!on_gone_) return;
  const bool any =
      std::any_of(sessions_.begin(), sessions_.end(), [](const auto& session) { return session && session->open(); });
  const bool gone = !any && absences_.deadline() == kNoDeadline;  // Who is away may still come for the goodbye.
  if (gone) on_gone_();
}

}  // namespace annulus
