// Answers to the judge's messages, and the verdicts that a member reaches when the judge is gone.
#include "collectives/control/control_member.h"

#include "collectives/control/arbiter_text.h"

namespace annulus {

ControlMember::~ControlMember() {
  if (channel_) channel_->Close();
}

Status ControlMember::Open(ControlConnections connections) {
  ANNULUS_RETURN_IF_ERROR(ControlChannel::Create(config_.context, connections.Take(0), kMostControlBytes, &channel_));
  channel_->Start({[this](MessageType type, std::span<const std::byte> body) { Take(type, body); },
                   [this](const Status& cause) { Closed(cause); }});
  return Status();
}

void ControlMember::Report(const Status& failure, const Call& call) {
  if (judge_left_) return config_.conclude(ArbiterLeftVerdict(config_.rank, call));
  reported_ = call;
  ByteWriter out;
  WriteStatus(failure, &out);
  WriteCall(call, &out);
  channel_->Send(MakeFrame(MessageType::kReport, out.bytes()));
}

void ControlMember::Doubt() {
  if (!judge_left_) channel_->Send(MakeFrame(MessageType::kDoubt, {}));
}

void ControlMember::Settle(const Verdict& verdict) {
  ByteWriter out;
  WriteVerdict(verdict, &out);
  channel_->Send(MakeFrame(MessageType::kVerdict, out.bytes()));
}

void ControlMember::Depart(std::function<void()> on_gone) {
  departing_ = true;
  if (!channel_->open()) return on_gone();
  on_gone_ = std::move(on_gone);
  ByteWriter out;
  WriteActivity(config_.activity->Read(), &out);
  channel_->Send(MakeFrame(MessageType::kGoodbye, out.bytes()));
  channel_->Finish();
}

void ControlMember::Take(MessageType type, std::span<const std::byte> body) {
  switch (type) {
    case MessageType::kQuery: {
      if (!body.empty()) return Broken("a query with a body");
      ByteWriter out;
      WriteActivity(config_.activity->Read(), &out);
      return channel_->Send(MakeFrame(MessageType::kAnswer, out.bytes()));
    }
    case MessageType::kVerdict:
      return TakeVerdict(body);
    case MessageType::kGoodbye:
      // Closing at once lets the judge leave without waiting for us.
      judge_left_ = true;
      channel_->Close();
      if (reported_) config_.conclude(ArbiterLeftVerdict(config_.rank, *reported_));
      if (on_gone_) on_gone_();
      return;
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
  config_.conclude(verdict);
}

void ControlMember::Broken(const std::string& what) {
  const Verdict verdict = BrokenMessageVerdict(0, what);
  Settle(verdict);
  config_.conclude(verdict);
}

void ControlMember::Closed(const Status& cause) {
  if (departing_) {
    if (on_gone_) on_gone_();
    return;
  }
  if (config_.judge_lost) config_.judge_lost();
  if (cause.code() == Code::kProtocol) return config_.conclude(BrokenMessageVerdict(0, cause.message()));
  config_.conclude(DeathVerdict(0, cause.os_errno()));
}

}  // namespace annulus
