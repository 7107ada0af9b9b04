#include "base/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace annulus {

std::string ReadTextFile(const std::string& path) {
  std::string text;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char part[4096];
  for (;;) {
    const ssize_t bytes = read(fd, part, sizeof part);
    if (bytes > 0) text.append(part, static_cast<size_t>(bytes));
    if (bytes == 0 || (bytes < 0 && errno != EINTR)) break;
  }
  close(fd);
  return text;
}

}  // namespace annulus
