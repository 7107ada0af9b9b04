#include "transport/shm/shm_bell.h"

#include <errno.h>
#include <sys/socket.h>

#include <utility>

namespace annulus {

ShmBell::ShmBell(StreamSocket socket, ShmEnd* own, ShmEnd* peer) : socket_(std::move(socket)), own_(own), peer_(peer) {
  ucred credentials = {};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(socket_.native_handle(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0) {
    peer_process_ = credentials.pid;
  }
}

void ShmBell::Ring() {
  if (peer_->asleep.exchange(0, std::memory_order_relaxed) == 0) return;
  const char bell = 0;
  // A full socket holds bells enough, and that of a dead peer fails Drain().
  (void)send(socket_.native_handle(), &bell, sizeof(bell), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void ShmBell::Wait() {
  if (state_->waiting || !socket_.is_open()) return;
  state_->waiting = true;
  socket_.async_wait(StreamSocket::wait_read, [state = state_](const asio::error_code&) {
    state->waiting = false;
    state->rung = true;
  });
}

bool ShmBell::Drain() {
  char bells[64];
  const ssize_t received = recv(socket_.native_handle(), bells, sizeof(bells), MSG_DONTWAIT);
  if (received > 0) {
    state_->rung = received == static_cast<ssize_t>(sizeof(bells));  // There may be more.
    return true;
  }
  state_->rung = false;
  return received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

void ShmBell::Shut() {
  asio::error_code ignored;
  // Not only closed: a forked child may hold the same socket open, and the peer would wait for that child.
  socket_.shutdown(StreamSocket::shutdown_both, ignored);
  socket_.close(ignored);
}

}  // namespace annulus
