// Turns messages into events for the arbiter, and its decisions into messages.
#include "collectives/control/control_judge.h"

#include <algorithm>
#include <chrono>

#include "collectives/control/arbiter_text.h"

namespace annulus {

ControlJudge::ControlJudge(const ControlRoleConfig& config)
    : config_(config), arbiter_(config.nranks), channels_(config.nranks), timer_(*config.context) {}

ControlJudge::~ControlJudge() {
  for (const auto& channel : channels_) {
    if (channel) channel->Close();
  }
}

Status ControlJudge::Open(ControlConnections connections) {
  for (int rank = 1; rank < config_.nranks; ++rank) {
    ANNULUS_RETURN_IF_ERROR(
        ControlChannel::Create(config_.context, connections.Take(rank), kMostControlBytes, &channels_[rank]));
    channels_[rank]->Start({[this, rank](MessageType type, std::span<const std::byte> body) { Take(rank, type, body); },
                            [this, rank](const Status& cause) { Closed(rank, cause); }});
  }
  return Status();
}

void ControlJudge::Report(const Status& failure, const Call& call) {
  arbiter_.Report(config_.rank, failure, call, Now());
  Act();
}

void ControlJudge::Doubt() {
  arbiter_.Doubt(Now());
  Act();
}

void ControlJudge::Settle(const Verdict& verdict) {
  arbiter_.Settled(config_.rank, verdict, Now());
  Act();
}

void ControlJudge::Depart(std::function<void()> on_gone) {
  timer_.cancel();
  on_gone_ = std::move(on_gone);
  ByteWriter out;
  WriteActivity(config_.activity->Read(), &out);
  SendAll(MakeFrame(MessageType::kGoodbye, out.bytes()));
  for (const auto& channel : channels_) {
    if (channel) channel->Finish();
  }
  CheckGone();
}

void ControlJudge::Take(int rank, MessageType type, std::span<const std::byte> body) {
  ByteReader in(body);
  if (!TakeBody(rank, type, &in)) {
    arbiter_.Broken(rank, "one of type " + std::to_string(static_cast<int>(type)) + " that cannot be read", Now());
  }
  Act();
}

bool ControlJudge::TakeBody(int rank, MessageType type, ByteReader* in) {
  const auto is_rank = [this](int r) { return r >= Status::kNoRank && r < config_.nranks; };
  Activity activity;
  Call call;
  Status failure;
  Verdict verdict;
  switch (type) {
    case MessageType::kReport:
      if (!ReadStatus(in, &failure) || !ReadCall(in, &call) || !in->done() || !is_rank(failure.peer())) return false;
      arbiter_.Report(rank, failure, call, Now());
      return true;
    case MessageType::kAnswer:
      if (!ReadActivity(in, &activity) || !in->done()) return false;
      arbiter_.Answer(rank, activity, Now());
      return true;
    case MessageType::kDoubt:
      if (!in->done()) return false;
      arbiter_.Doubt(Now());
      return true;
    case MessageType::kVerdict:
      if (!ReadVerdict(in, &verdict) || !in->done() || !is_rank(verdict.rank) || !is_rank(verdict.peer)) return false;
      arbiter_.Settled(rank, verdict, Now());
      return true;
    case MessageType::kGoodbye:
      if (!ReadActivity(in, &activity) || !in->done()) return false;
      arbiter_.Goodbye(rank, activity, Now());
      channels_[rank]->Close();
      CheckGone();
      return true;
    default:
      return false;
  }
}

void ControlJudge::Closed(int rank, const Status& cause) {
  if (cause.code() == Code::kProtocol) {
    arbiter_.Broken(rank, cause.message(), Now());
  } else if (announced_) {
    TellLoss(rank, cause.os_errno());
  } else {
    arbiter_.Disconnected(rank, cause.os_errno(), Now());
  }
  Act();
  CheckGone();
}

void ControlJudge::TellLoss(int rank, int os_errno) {
  if (on_gone_) return;  // A leaving rank no longer judges.
  const Verdict loss = DeathVerdict(rank, os_errno);
  ByteWriter out;
  WriteVerdict(loss, &out);
  SendAll(MakeFrame(MessageType::kVerdict, out.bytes()));
  config_.conclude(loss);
}

void ControlJudge::Act() {
  if (on_gone_) return;  // A leaving rank no longer judges.
  if (arbiter_.TakeQuery()) {
    SendAll(MakeFrame(MessageType::kQuery, {}));
    arbiter_.Answer(config_.rank, config_.activity->Read(), Now());
  }
  if (!arbiter_.verdict()) return SetTimer();
  if (announced_) return;
  announced_ = true;
  ByteWriter out;
  WriteVerdict(*arbiter_.verdict(), &out);
  SendAll(MakeFrame(MessageType::kVerdict, out.bytes()));  // First: this rank may exit once it knows.
  config_.conclude(*arbiter_.verdict());
}

void ControlJudge::SendAll(const Frame& frame) {
  for (const auto& channel : channels_) {
    if (channel) channel->Send(frame);
  }
}

void ControlJudge::SetTimer() {
  if (arbiter_.deadline() == kNoDeadline) return;
  const Nanoseconds wait = std::max<Nanoseconds>(arbiter_.deadline() - Now(), 0);
  timer_.expires_after(std::chrono::nanoseconds(wait));
  timer_.async_wait([this](const asio::error_code& error) {
    if (error) return;  // The timer was reset, or this rank is leaving.
    arbiter_.Tick(Now());
    Act();
  });
}

void ControlJudge::CheckGone() {
  if (!on_gone_) return;
  const bool gone =
      std::none_of(channels_.begin(), channels_.end(), [](const auto& channel) { return channel && channel->open(); });
  if (gone) on_gone_();
}

}  // namespace annulus
