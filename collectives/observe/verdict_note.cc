#include "collectives/observe/verdict_note.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <limits>
#include <string>

#include "base/parse.h"

namespace annulus {
namespace {

// "DESCRIPTOR:INODE:RANK".
bool Parse(const std::string& text, std::array<int64_t, 3>* numbers) {
  size_t begin = 0;
  for (size_t i = 0; i < numbers->size(); ++i) {
    const bool last = i + 1 == numbers->size();
    const size_t end = last ? text.size() : text.find(':', begin);
    if (end == std::string::npos || !ParseNumber(text.substr(begin, end - begin), &(*numbers)[i])) return false;
    if ((*numbers)[i] < 0) return false;
    begin = end + 1;
  }
  return (*numbers)[0] <= 1 << 20 && (*numbers)[2] <= std::numeric_limits<int32_t>::max();
}

}  // namespace

void SendVerdictNote(const char* handed_down, int32_t culprit) {
  std::array<int64_t, 3> numbers;
  if (handed_down == nullptr || !Parse(handed_down, &numbers)) return;
  const int fd = static_cast<int>(numbers[0]);
  // The program may have closed the socket and opened something else in its place.
  struct stat status;
  if (fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode) || static_cast<int64_t>(status.st_ino) != numbers[1]) return;
  const VerdictNote note{static_cast<int32_t>(numbers[2]), culprit};
  [[maybe_unused]] const ssize_t sent = send(fd, &note, sizeof note, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace annulus
