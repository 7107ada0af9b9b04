#include "transport/verbs/verbs_handover.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "transport/security/door.h"

namespace annulus {
namespace {

// What the peer's device refused, for people.
const char* StepText(VerbsStep step) {
  switch (step) {
    case VerbsStep::kNothing:
      return "nothing";
    case VerbsStep::kQueue:
      return "a completion queue for its links";
    case VerbsStep::kPair:
      return "memory or a queue pair";
    case VerbsStep::kConnecting:
      return "to connect a queue pair";
  }
  return "";
}

}  // namespace

Status VerbsHandover::GiveUp(const Status& why, VerbsStep refused, VerbsWord* word) {
  const bool by_device =
      why.code() == Code::kSystem || why.code() == Code::kOutOfMemory || why.code() == Code::kUnsupported;
  if (!by_device || IsOutOfDescriptors(why.os_errno())) return why;
  const std::string text = "rank " + std::to_string(rank_) + "'s device refused it: " + why.message();
  if (!may_refuse_) return {why.code(), text + " (towards " + PeerName() + ")", rank_, why.os_errno()};
  refusal_ = text;
  endpoint_ = nullptr;
  *word = {.refused = refused, .os_errno = std::clamp(why.os_errno(), 0, VerbsWord::kMostErrno)};
  return Status();
}

Status VerbsHandover::Start(std::unique_ptr<VerbsEndpoint> endpoint) {
  endpoint_ = std::move(endpoint);
  VerbsGreeting greeting;
  const Status opened = endpoint_->Open(&greeting);
  if (opened.ok()) return Greet(greeting);
  VerbsWord word;
  ANNULUS_RETURN_IF_ERROR(GiveUp(opened, VerbsStep::kPair, &word));
  ANNULUS_RETURN_IF_ERROR(Greet({.refused = true}));
  return Say(word);
}

Status VerbsHandover::Refuse(const Status& why) {
  VerbsWord word;
  ANNULUS_RETURN_IF_ERROR(GiveUp(why, VerbsStep::kQueue, &word));
  ANNULUS_RETURN_IF_ERROR(Greet({.refused = true}));
  return Say(word);
}

Status VerbsHandover::Greet(const VerbsGreeting& greeting) {
  std::array<std::byte, VerbsGreeting::kBytes> bytes;
  WriteVerbsGreeting(greeting, bytes);
  return Write(bytes.data(), bytes.size());
}

Status VerbsHandover::Say(const VerbsWord& word) {
  std::array<std::byte, VerbsWord::kBytes> bytes;
  WriteVerbsWord(word, bytes);
  return Write(bytes.data(), bytes.size());
}

// These are the first bytes that this side sends on the stream, so they fit its buffer.
Status VerbsHandover::Write(const std::byte* data, size_t bytes) {
  const ssize_t sent = send(socket_->native_handle(), data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(bytes) ? Status() : Lost("sending to it", sent < 0 ? errno : 0);
}

Status VerbsHandover::Continue() {
  while (!done()) {
    const bool greeted = in_bytes_ >= VerbsGreeting::kBytes;
    const size_t wanted = (greeted ? in_.size() : VerbsGreeting::kBytes) - in_bytes_;
    const ssize_t got = recv(socket_->native_handle(), in_.data() + in_bytes_, wanted, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status();
    if (got <= 0) return Lost("waiting for it", got < 0 ? errno : 0);
    in_bytes_ += static_cast<size_t>(got);
    if (!greeted && in_bytes_ == VerbsGreeting::kBytes) ANNULUS_RETURN_IF_ERROR(OnGreeting());
  }
  return OnWord();
}

Status VerbsHandover::OnGreeting() {
  VerbsGreeting greeting;
  const Status read = ReadVerbsGreeting(std::span(in_).first<VerbsGreeting::kBytes>(), &greeting);
  if (!read.ok()) return {read.code(), read.message() + " (" + PeerName() + ")", peer_, 0};
  if (greeting.refused && !may_refuse_) {
    return {Code::kProtocol, "verbs: " + PeerName() + " refused a link that has no other transport", peer_, 0};
  }
  if (endpoint_ == nullptr) return Status();  // The peer has been told.
  if (greeting.refused) {
    endpoint_ = nullptr;  // Its word says why.
    return Say({});
  }
  const Status connected = endpoint_->Connect(greeting);
  VerbsWord word{.ready = true};
  if (!connected.ok()) ANNULUS_RETURN_IF_ERROR(GiveUp(connected, VerbsStep::kConnecting, &word));
  return Say(word);
}

Status VerbsHandover::OnWord() {
  VerbsWord word;
  const bool is_word = ReadVerbsWord(std::span(in_).last<VerbsWord::kBytes>(), &word);
  if (!is_word || (!word.ready && !may_refuse_) || (word.ready && endpoint_ == nullptr && refusal_.empty())) {
    return {Code::kProtocol, "verbs: " + PeerName() + " sent something else than that it is ready", peer_, 0};
  }
  if (word.ready) return Status();
  endpoint_ = nullptr;
  if (!refusal_.empty()) return Status();  // The reason of this end is enough; the peer tells its own.
  if (word.refused == VerbsStep::kNothing) {
    return {Code::kProtocol, "verbs: " + PeerName() + " refused a link for no reason", peer_, 0};
  }
  refusal_ = PeerName() + "'s device refused " + StepText(word.refused);
  if (word.os_errno != 0) refusal_ += std::string(": ") + std::strerror(word.os_errno);
  refusal_ += " (its log says more)";
  return Status();
}

std::unique_ptr<VerbsEndpoint> VerbsHandover::TakeEndpoint() {
  endpoint_->Attach(std::move(*socket_));
  return std::move(endpoint_);
}

Status VerbsHandover::Lost(const char* what, int os_errno) const {
  std::string text = PeerName() + " left while its verbs link was set up, " + what;
  if (os_errno != 0) text += ": " + std::string(std::strerror(os_errno));
  return {Code::kPeerLost, std::move(text), peer_, os_errno};
}

}  // namespace annulus
