#include "launcher/watch/watch.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <utility>
#include <vector>

namespace annulus {
namespace {

constexpr Nanoseconds kInterval = 1 * kSecond;
constexpr const char* kEraseLine = "\r\033[2K";
constexpr const char* kEraseBelow = "\r\033[J";

}  // namespace

Watch::Watch(LineTarget* target, int fd, bool redraws) : target_(target), fd_(fd), table_(redraws && isatty(fd) != 0) {}

Status Watch::Begin(int nranks) {
  begin_ = Now();
  next_ = begin_ + kInterval;
  before_.ranks.resize(static_cast<size_t>(nranks));
  return page_.Make(nranks);
}

std::string Watch::LinePrefix(int fd) const {
  return table_ && next_ != kNoDeadline && isatty(fd) != 0 ? kEraseLine : "";
}

void Watch::Advance() {
  const Nanoseconds time = Now();
  if (time < next_) return;
  next_ = time + kInterval;
  WatchMoment now{time - begin_, page_.Read(time)};
  if (target_->full()) return;  // Nobody reads; a later state says more.
  if (table_) {
    Draw(now);
  } else {
    target_->AddLine("annulus-run: ", WatchLine(before_, now));
  }
  before_ = std::move(now);
}

// Leaves the cursor where the table begins, so that the next output replaces it.
void Watch::Draw(const WatchMoment& now) {
  winsize size{};
  if (ioctl(fd_, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) size = {24, 80, 0, 0};
  const std::vector<std::string> table = WatchTable(before_, now, size.ws_row, size.ws_col);
  std::string text = kEraseBelow;
  for (const std::string& line : table) text += line + "\r\n";
  text += "\033[" + std::to_string(table.size()) + "A";
  target_->AddBytes(text);
}

void Watch::End() {
  if (next_ == kNoDeadline) return;
  next_ = kNoDeadline;
  if (table_) target_->AddBytes(kEraseBelow);
}

}  // namespace annulus
