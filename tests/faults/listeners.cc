// Sockets of a process: links in /proc/PID/fd. Listening ones: /proc/net/tcp, whose addresses and states are in
// hexadecimal, and /proc/net/unix.
#include "tests/faults/listeners.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace annulus {
namespace {

namespace fs = std::filesystem;

std::set<std::string> SocketsOf(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code error;
  for (fs::directory_iterator entry("/proc/" + std::to_string(pid) + "/fd", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry->path(), gone).string();
    const std::string prefix = "socket:[";
    if (target.rfind(prefix, 0) == 0) inodes.insert(target.substr(prefix.size(), target.size() - prefix.size() - 1));
  }
  return inodes;
}

// The words of each line but the first, which is a heading.
std::vector<std::vector<std::string>> Table(const std::string& path) {
  std::vector<std::vector<std::string>> rows;
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream words(line);
    rows.emplace_back();
    for (std::string word; words >> word;) rows.back().push_back(word);
  }
  return rows;
}

}  // namespace

std::vector<Listener> ListenersOf(const std::vector<pid_t>& pids) {
  std::set<std::string> inodes;
  for (const pid_t pid : pids) inodes.merge(SocketsOf(pid));
  std::vector<Listener> listeners;
  constexpr size_t kLocal = 1, kState = 3, kInode = 9;
  for (const std::vector<std::string>& row : Table("/proc/net/tcp")) {
    if (row.size() <= kInode || row[kState] != "0A" || inodes.count(row[kInode]) == 0) continue;
    const std::string port = row[kLocal].substr(row[kLocal].find(':') + 1);
    listeners.push_back({static_cast<int>(std::strtol(port.c_str(), nullptr, 16)), ""});
  }
  constexpr size_t kFlags = 3, kUnixInode = 6, kName = 7;
  for (const std::vector<std::string>& row : Table("/proc/net/unix")) {
    if (row.size() <= kName || row[kFlags] != "00010000" || inodes.count(row[kUnixInode]) == 0) continue;
    if (row[kName][0] == '@') listeners.push_back({0, row[kName].substr(1)});
  }
  return listeners;
}

int ConnectTo(const Listener& listener) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(sockaddr_in);
  if (listener.port != 0) {
    auto* in = reinterpret_cast<sockaddr_in*>(&address);
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    in->sin_port = htons(static_cast<uint16_t>(listener.port));
  } else {
    auto* un = reinterpret_cast<sockaddr_un*>(&address);
    un->sun_family = AF_UNIX;
    std::memcpy(un->sun_path + 1, listener.name.data(), std::min(listener.name.size(), sizeof un->sun_path - 1));
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + listener.name.size());
  }
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit = {2, 0};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), bytes) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace annulus
