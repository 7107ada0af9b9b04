#include "transport/shm/shm_bell.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "transport/file_message.h"

namespace annulus {
namespace {

// Reads per call, so that a flood of bells and notices is read in several turns.
constexpr int kReadsPerDrain = 16;

// Minimum time between two looks at the socket, each a system call, by a spinning owner.
constexpr Nanoseconds kLookInterval = 200 * kMicrosecond;

}  // namespace

ShmBell::ShmBell(StreamSocket socket, ShmEnd* own, ShmEnd* peer) : socket_(std::move(socket)), own_(own), peer_(peer) {
  ucred credentials = {};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(socket_.native_handle(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0) {
    peer_process_ = credentials.pid;
    is_peer_own_user_ = credentials.uid == geteuid();
  }
}

void ShmBell::Ring() {
  if (peer_->asleep.exchange(0, std::memory_order_relaxed) == 0) return;
  const char bell = kShmBellByte;
  // A full socket holds enough bells, and for a dead peer Drain() fails.
  (void)send(socket_.native_handle(), &bell, sizeof(bell), MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool ShmBell::LookDueByNow() {
  const Nanoseconds now = Now();
  if (now < next_look_) return false;
  next_look_ = now + kLookInterval;
  return true;
}

void ShmBell::Wait() {
  if (state_->waiting || !socket_.is_open()) return;
  state_->waiting = true;
  const auto handler = [state = state_](const asio::error_code&) {
    state->waiting = false;
    state->rung = true;
  };
  socket_.async_wait(StreamSocket::wait_read, state_->handler.Keep(handler));
}

bool ShmBell::Send(const ShmNotice& notice, const SharedDeviceMemory& shared) {
  struct {
    ShmNotice notice;
    SharedDeviceMemory shared;
  } const message = {notice, shared};
  static_assert(sizeof(message) == sizeof(notice) + sizeof(shared));
  return SendWhole(&message, sizeof(message), -1);
}

bool ShmBell::SendWhole(const void* message, size_t bytes, int fd) {
  // A message this small is sent whole or not at all.
  return SendWithFile(socket_.native_handle(), message, bytes, fd) == static_cast<ssize_t>(bytes);
}

bool ShmBell::Drain(ShmPeerRegions* regions) {
  state_->rung = false;
  for (int reads = 0; reads < kReadsPerDrain; ++reads) {
    char bytes[64];
    int file = -1;
    bool lost = false;
    const ssize_t received = ReceiveWithFile(socket_.native_handle(), bytes, sizeof(bytes), &file, &lost);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (received == 0) return false;
    if (lost) regions->MissFile();
    regions->Feed(bytes, static_cast<size_t>(received), file);
    if (received < static_cast<ssize_t>(sizeof(bytes)) && file < 0) return true;
  }
  state_->rung = true;  // There may be more.
  return true;
}

void ShmBell::Shut() {
  asio::error_code ignored;
  // Closing alone is not enough: a forked child may hold the same socket open, and the peer would wait for that child.
  socket_.shutdown(StreamSocket::shutdown_both, ignored);
  socket_.close(ignored);
}

}  // namespace annulus
