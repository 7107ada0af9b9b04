#include "transport/verbs/verbs_stream.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>

namespace annulus {
namespace {

// A host that says nothing for so long is gone: 10 s of silence and then 10 probes, a second apart.
constexpr int kKeepIdleSeconds = 10;
constexpr int kKeepIntervalSeconds = 1;
constexpr int kKeepProbes = 10;

}  // namespace

void VerbsStream::KeepAlive() {
  const auto set = [this](int level, int option, int value) {
    (void)setsockopt(socket_.native_handle(), level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
}

bool VerbsStream::LookDueByNow() {
  const Nanoseconds now = Now();
  if (now < next_look_) return false;
  next_look_ = now + kLookInterval;
  return true;
}

bool VerbsStream::Read() {
  state_->rung = false;
  while (reads()) {
    std::byte excess;
    const bool full = in_bytes_ == in_.size();
    const ssize_t got =
        full ? recv(socket_.native_handle(), &excess, 1, MSG_DONTWAIT)
             : recv(socket_.native_handle(), in_.data() + in_bytes_, in_.size() - in_bytes_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got > 0 && full) return false;
    if (got <= 0) {
      ended_ = true;
    } else {
      in_bytes_ += static_cast<size_t>(got);
    }
    if (in_bytes_ == in_.size() && said_ == Said::kNothing && !ReadWords()) return false;
  }
  return true;
}

bool VerbsStream::ReadWords() {
  if (may_stop_ && ReadVerbsStop(in_, &stop_)) {
    said_ = Said::kStop;
    return true;
  }
  if (!ReadVerbsFarewell(in_, &farewell_)) return false;
  said_ = Said::kFarewell;
  return true;
}

void VerbsStream::Wait() {
  if (state_->waiting || !reads() || !socket_.is_open()) return;
  state_->waiting = true;
  const auto handler = [state = state_](const asio::error_code&) {
    state->waiting = false;
    state->rung = true;
  };
  socket_.async_wait(StreamSocket::wait_read, state_->handler.Keep(handler));
}

// The stream's buffer is empty, so it has room; a peer that is gone is noticed by the stream's end.
void VerbsStream::Say(const VerbsStop& stop) {
  has_stopped_ = true;
  std::array<std::byte, VerbsStop::kBytes> out;
  WriteVerbsStop(stop, out);
  (void)send(socket_.native_handle(), out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool VerbsStream::acknowledged() {
  int waiting = 0;
  return ioctl(socket_.native_handle(), SIOCOUTQ, &waiting) == 0 && waiting == 0;
}

void VerbsStream::Leave(const VerbsFarewell& farewell) {
  if (!socket_.is_open()) return;
  if (!has_stopped_) {
    std::array<std::byte, VerbsFarewell::kBytes> out;
    WriteVerbsFarewell(farewell, out);
    // The stream's buffer is empty, so it has room; a peer that is gone needs no farewell.
    (void)send(socket_.native_handle(), out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  asio::error_code ignored;
  // Closing alone is not enough: a forked child may hold the same socket open.
  socket_.shutdown(StreamSocket::shutdown_both, ignored);
  socket_.close(ignored);
}

}  // namespace annulus
