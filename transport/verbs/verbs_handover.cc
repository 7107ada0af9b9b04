#include "transport/verbs/verbs_handover.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "base/bytes.h"

namespace annulus {

Status VerbsHandover::Start() {
  VerbsGreeting greeting;
  ANNULUS_RETURN_IF_ERROR(endpoint_->Open(&greeting));
  std::array<std::byte, VerbsGreeting::kBytes> bytes;
  WriteVerbsGreeting(greeting, bytes);
  return Say(bytes.data(), bytes.size());
}

// These are the first bytes that this side sends on the stream, so they fit its buffer.
Status VerbsHandover::Say(const std::byte* data, size_t bytes) {
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
    if (!greeted && in_bytes_ == VerbsGreeting::kBytes) ANNULUS_RETURN_IF_ERROR(TakeGreeting());
  }
  return TakeReady();
}

Status VerbsHandover::TakeGreeting() {
  VerbsGreeting greeting;
  const Status read = ReadVerbsGreeting(std::span(in_).first<VerbsGreeting::kBytes>(), &greeting);
  if (!read.ok()) return {read.code(), read.message() + " (rank " + std::to_string(peer()) + ")", peer(), 0};
  ANNULUS_RETURN_IF_ERROR(endpoint_->Connect(greeting));
  std::array<std::byte, kReadyBytes> ready;
  StoreLittle(ready.data(), kVerbsReady);
  return Say(ready.data(), ready.size());
}

Status VerbsHandover::TakeReady() const {
  if (LoadLittle<uint64_t>(in_.data() + VerbsGreeting::kBytes) == kVerbsReady) return Status();
  return {Code::kProtocol, "verbs: rank " + std::to_string(peer()) + " sent something else than that it is ready",
          peer(), 0};
}

std::unique_ptr<VerbsEndpoint> VerbsHandover::Take() {
  endpoint_->Attach(std::move(*socket_));
  return std::move(endpoint_);
}

Status VerbsHandover::Lost(const char* what, int os_errno) const {
  std::string text = "rank " + std::to_string(peer()) + " left while its verbs link was set up, " + what;
  if (os_errno != 0) text += ": " + std::string(std::strerror(os_errno));
  return {Code::kPeerLost, std::move(text), peer(), os_errno};
}

}  // namespace annulus
