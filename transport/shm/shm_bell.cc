#include "transport/shm/shm_bell.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace annulus {
namespace {

// Room for one descriptor; the kernel never joins the files of two messages.
struct Attachment {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))] = {};
};

msghdr MessageOf(iovec* data, Attachment* attachment) {
  msghdr message = {};
  message.msg_iov = data;
  message.msg_iovlen = 1;
  message.msg_control = attachment->bytes;
  message.msg_controllen = CMSG_LEN(sizeof(int));
  return message;
}

// The file that came with a message, or -1.
int FileOf(msghdr* message) {
  const cmsghdr* const header = CMSG_FIRSTHDR(message);
  int fd = -1;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  }
  return fd;
}

// A flood of bells and notices is read in turns.
constexpr int kReadsPerDrain = 16;

}  // namespace

ShmBell::ShmBell(StreamSocket socket, ShmEnd* own, ShmEnd* peer) : socket_(std::move(socket)), own_(own), peer_(peer) {
  ucred credentials = {};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(socket_.native_handle(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0) {
    peer_process_ = credentials.pid;
  }
}

void ShmBell::Ring() {
  if (peer_->asleep.exchange(0, std::memory_order_relaxed) == 0) return;
  const char bell = kShmBellByte;
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

bool ShmBell::Send(const ShmNotice& notice, int fd) {
  iovec data{const_cast<ShmNotice*>(&notice), sizeof(notice)};
  Attachment attachment;
  msghdr message = MessageOf(&data, &attachment);
  if (fd < 0) {
    message.msg_control = nullptr;
    message.msg_controllen = 0;
  } else {
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  // So small a message is sent whole or not at all.
  return sendmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(notice);
}

bool ShmBell::Drain(ShmPeerRegions* regions) {
  state_->rung = false;
  for (int reads = 0; reads < kReadsPerDrain; ++reads) {
    char bytes[64];
    iovec data{bytes, sizeof(bytes)};
    Attachment attachment;
    msghdr message = MessageOf(&data, &attachment);
    const ssize_t received = recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (received == 0) return false;
    const int file = FileOf(&message);
    if ((message.msg_flags & MSG_CTRUNC) != 0) regions->MissFile();
    regions->Feed(bytes, static_cast<size_t>(received), file);
    // A message with a file ends a read.
    if (received < static_cast<ssize_t>(sizeof(bytes)) && file < 0) return true;
  }
  state_->rung = true;  // There may be more.
  return true;
}

void ShmBell::Shut() {
  asio::error_code ignored;
  // Not only closed: a forked child may hold the same socket open, and the peer would wait for that child.
  socket_.shutdown(StreamSocket::shutdown_both, ignored);
  socket_.close(ignored);
}

}  // namespace annulus
