#include "launcher/job/output.h"

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
