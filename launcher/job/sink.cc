#include "launcher/job/sink.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace annulus {
namespace {

bool SameTerminal(int one, int other) {
  unsigned int devices[2];
  return ioctl(one, TIOCGDEV, &devices[0]) == 0 && ioctl(other, TIOCGDEV, &devices[1]) == 0 && devices[0] == devices[1];
}

bool IsWritable(int fd) {
  pollfd polled{fd, POLLOUT, 0};
  return poll(&polled, 1, 0) > 0;
}

int OpenAgain(int fd, bool terminal) {
  constexpr int kFlags = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  struct stat about;
  if (fstat(fd, &about) != 0 || (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) return -1;
  // Files have no readers, and the new one would begin at their start. Sockets cannot be opened.
  if (!terminal && !S_ISFIFO(about.st_mode)) return -1;
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (!terminal) return open(path.c_str(), kFlags);
  // After su or sudo the terminal belongs to another user, but everybody may open the own one by its second name. The
  // first one makes a new terminal if `fd` is the far end of one.
  for (const char* name : {path.c_str(), "/dev/tty"}) {
    const int own = open(name, kFlags);
    if (own < 0) continue;
    if (SameTerminal(fd, own)) return own;
    close(own);
  }
  return -1;
}

}  // namespace

Sink::Sink(int fd) : fd_(fd), terminal_(isatty(fd) != 0), own_(OpenAgain(fd, terminal_)) {}

Sink::~Sink() {
  if (own_ >= 0) close(own_);
}

void Sink::AddBytes(std::string_view bytes) {
  if (!broken_) buffer_.append(bytes);
}

pollfd Sink::Polled() {
  if (Now() >= retry_) retry_ = kNoDeadline;
  return {broken_ ? -1 : writer(), static_cast<short>(empty() || retry_ != kNoDeadline ? 0 : POLLOUT), 0};
}

void Sink::OnPolled(short events) {
  if ((events & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
    Break();
  } else if ((events & POLLOUT) != 0) {
    WriteSome();
  }
}

void Sink::WriteSome() {
  // A pipe that could not be opened again takes PIPE_BUF bytes without blocking when it polls writable. The launcher's
  // other stream may have taken its room since that was polled.
  const size_t bytes = std::min<size_t>(Pending(), PIPE_BUF);
  if (bytes == 0 || (own_ < 0 && !IsWritable(fd_))) return;
  const ssize_t written = write(writer(), buffer_.data() + written_, bytes);
  if (written < 0) return OnError(errno);
  refusals_ = 0;
  written_ += static_cast<size_t>(written);
  // Moving the rest to the front costs at most as much as has been written.
  if (written_ * 2 >= buffer_.size()) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
}

void Sink::OnError(int error) {
  if (error == EINTR) return;
  if (error == EAGAIN) {
    // Another writer may have been faster. But a terminal polls writable with room for one byte, while a newline needs
    // two: that would be asked for again and again.
    if (++refusals_ > 1) retry_ = DeadlineAfter(kRetryTime);
    return;
  }
  if (error == EPIPE || error == ECONNRESET || (error == EIO && terminal_)) return Break();
  if (error_ == 0) error_ = error;
  Drop();
}

void Sink::Break() {
  broken_ = true;
  Drop();
}

void Sink::Drop() {
  buffer_.clear();
  written_ = 0;
}

}  // namespace annulus
