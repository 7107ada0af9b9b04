#include "launcher/job/output.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace annulus {

void LineTarget::AddLine(std::string_view prefix, std::string_view text) {
  AddBytes(prefix);
  AddBytes(text);
  AddBytes("\n");
}

void Sink::AddBytes(std::string_view bytes) {
  if (!broken_) buffer_.append(bytes);
}

void Sink::OnPolled(short events) {
  if ((events & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
    Break();
  } else if ((events & POLLOUT) != 0) {
    WriteSome();
  }
}

void Sink::WriteSome() {
  // A pipe that polls writable takes PIPE_BUF bytes without blocking. O_NONBLOCK would affect everybody who shares the
  // open file, such as the shell.
  const size_t bytes = std::min<size_t>(Pending(), PIPE_BUF);
  if (bytes == 0) return;
  const ssize_t written = write(fd_, buffer_.data() + written_, bytes);
  if (written < 0) {
    if (errno != EINTR && errno != EAGAIN) Break();
    return;
  }
  written_ += static_cast<size_t>(written);
  // Moving the rest to the front costs at most as much as has been written.
  if (written_ * 2 >= buffer_.size()) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
}

void Sink::Break() {
  broken_ = true;
  buffer_.clear();
  written_ = 0;
}

bool LineSource::ReadSome() {
  std::array<char, kReadBytes> bytes;
  const ssize_t got = read(fd_, bytes.data(), bytes.size());
  if (got < 0) return errno == EINTR;
  if (got == 0) {
    Close();
  } else {
    PassOn({bytes.data(), static_cast<size_t>(got)});
  }
  return true;
}

void LineSource::Drain() {
  while (fd_ >= 0 && !target_->full()) {
    if (!ReadSome()) Close();
  }
}

void LineSource::PassOn(std::string_view bytes) {
  if (!prefix_) return target_->AddBytes(bytes);
  while (!bytes.empty()) {
    const bool ended = bytes.front() == '\n';
    if (ended || line_.size() == kMaxLineBytes) {
      target_->AddLine(*prefix_, line_);
      line_.clear();
    }
    if (ended) {
      bytes.remove_prefix(1);
      continue;
    }
    const size_t room = kMaxLineBytes - line_.size();
    const size_t part = std::min({bytes.find('\n'), bytes.size(), room});
    line_.append(bytes.substr(0, part));
    bytes.remove_prefix(part);
  }
}

void LineSource::Close() {
  if (fd_ < 0) return;
  close(fd_);
  fd_ = -1;
  if (!line_.empty()) target_->AddLine(*prefix_, line_);
  line_.clear();
}

}  // namespace annulus
