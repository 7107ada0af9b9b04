// Connections of this process that are made to fall silent: their kernel drops what comes for them.
//
// Threads: any.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace annulus {

// This process's sockets that are connected to another one.
inline std::vector<int> Connected() {
  std::vector<int> found;
  DIR* const folder = opendir("/proc/self/fd");
  EXPECT_NE(folder, nullptr);
  while (const dirent* const entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    sockaddr_storage address{};
    socklen_t bytes = sizeof address;
    if (fd == dirfd(folder) || getpeername(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) continue;
    if (address.ss_family == AF_INET || address.ss_family == AF_INET6) found.push_back(fd);
  }
  closedir(folder);
  return found;
}

// From now on these sockets' kernel drops what comes for them, before it looks at it. Returns how many it does so for:
// others may be closed meanwhile.
inline size_t Silence(const std::vector<int>& sockets) {
  sock_filter drop = {.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0};
  const sock_fprog filter = {.len = 1, .filter = &drop};
  return std::count_if(sockets.begin(), sockets.end(), [&](int fd) {
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0;
  });
}

// Also where it was not silent.
inline void EndSilence(const std::vector<int>& sockets) {
  const int unused = 0;
  for (const int fd : sockets) setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
}

}  // namespace annulus
