#include "collectives/control/control_session.h"

#include <utility>

#include "base/bytes.h"

namespace annulus {
namespace {

// Received messages per confirmation.
constexpr uint64_t kConfirmInterval = 16;

std::string CountBody(uint64_t count) {
  ByteWriter out;
  out.U64(count);
  return out.bytes();
}

bool ReadCount(std::span<const std::byte> body, uint64_t* count) {
  ByteReader in(body);
  *count = in.U64();
  return in.done();
}

}  // namespace

ControlSession::ControlSession(ControlNet* net, Handlers handlers) : net_(net), handlers_(std::move(handlers)) {}

Status ControlSession::Open(SealedFd connection) {
  ANNULUS_RETURN_IF_ERROR(net_->Adopt(std::move(connection), kMostBodyBytes, &stream_));
  Start(false);
  return Status();
}

Status ControlSession::Resume(SealedFd connection) {
  std::shared_ptr<MessageStream> next;
  ANNULUS_RETURN_IF_ERROR(net_->Adopt(std::move(connection), kMostBodyBytes, &next));
  if (closed_) {
    next->Close();
    return Status(Code::kPeerLost, "came back to a session that has ended");
  }
  if (stream_ != nullptr) stream_->Abandon();
  stream_ = std::move(next);
  Start(true);
  stream_->Send(EncodeMessage(MessageType::kResume, CountBody(received_)));
  return Status();
}

void ControlSession::Start(bool resumes) {
  awaits_resume_ = resumes;
  broken_ = false;
  stream_->Start({[this](MessageType type, std::span<const std::byte> body) { OnMessage(type, body); },
                  [this](const Status& cause) { OnEnded(cause); }, [this](const std::string& what) { Broken(what); }});
}

void ControlSession::Send(MessageType type, const std::string& body) {
  if (finishing_ || closed_) return;
  if (kept_.size() >= kMostKept && !broken_) return Broken("no confirmation of many messages");
  kept_.push_back(EncodeMessage(type, body));
  if (open() && !awaits_resume_) stream_->Send(kept_.back());
}

void ControlSession::Finish() {
  finishing_ = true;
  if (open() && !awaits_resume_) stream_->Finish();
}

void ControlSession::Probe() {
  if (open() && !awaits_resume_) stream_->Send(EncodeMessage(MessageType::kReceived, CountBody(received_)));
}

void ControlSession::Close() {
  closed_ = true;
  if (stream_ != nullptr) stream_->Close();
}

void ControlSession::OnMessage(MessageType type, std::span<const std::byte> body) {
  uint64_t count = 0;
  if (type == MessageType::kResume) {
    if (!awaits_resume_ || !ReadCount(body, &count)) return Broken("a resume that was not due");
    return OnResume(count);
  }
  if (awaits_resume_) return Broken("a message before it resumed");
  if (type == MessageType::kReceived) {
    if (!ReadCount(body, &count) || !Confirm(count)) Broken("a confirmation of messages that do not exist");
    return;
  }
  ++received_;
  if (received_ % kConfirmInterval == 0 && !finishing_)
    stream_->Send(EncodeMessage(MessageType::kReceived, CountBody(received_)));
  handlers_.on_message(type, body);
}

void ControlSession::OnResume(uint64_t received) {
  if (!Confirm(received)) return Broken("a resume after messages that do not exist");
  awaits_resume_ = false;
  for (const EncodedMessage& message : kept_) stream_->Send(message);
  if (finishing_) stream_->Finish();
}

bool ControlSession::Confirm(uint64_t received) {
  if (received < confirmed_ || received > confirmed_ + kept_.size()) return false;
  kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(received - confirmed_));
  confirmed_ = received;
  return true;
}

void ControlSession::OnEnded(const Status& cause) {
  if (closed_) return;
  ControlEnd end = stream_->was_reset() ? ControlEnd::kReset : ControlEnd::kOrderly;
  // A dial that was given up ends like that: not the end of the process.
  if (awaits_resume_ && end == ControlEnd::kOrderly) end = ControlEnd::kReset;
  if (cause.code() == Code::kSystem) end = ControlEnd::kSilent;
  if (broken_) end = ControlEnd::kProtocol;
  handlers_.on_closed(end, cause);
}

// The peer, too, is to hear the verdict; it does not say any more which messages it has.
void ControlSession::Broken(const std::string& what) {
  broken_ = true;
  if (stream_ != nullptr) stream_->Ignore();
  if (std::exchange(awaits_resume_, false) && finishing_) stream_->Finish();
  handlers_.on_closed(ControlEnd::kProtocol, Status(Code::kProtocol, what));
}

}  // namespace annulus
