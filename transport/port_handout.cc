#include "transport/port_handout.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "transport/file_message.h"
#include "transport/forked_child.h"

namespace annulus {
namespace {

constexpr char kWord = 'P';
constexpr int kServedPerTurn = 16;
// Pause before something is tried again that the system refuses for now.
constexpr int kPauseMs = 10;
constexpr size_t kNameStart = offsetof(sockaddr_un, sun_path) + 1;  // Behind the zero of an abstract name.

void Pause() { poll(nullptr, 0, kPauseMs); }

// connect(2), again and again until the deadline while too many wait there already.
bool ConnectTo(const sockaddr_un& address, socklen_t bytes, int fd, Deadline deadline) {
  while (connect(fd, reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
    if (errno != EAGAIN || Now() >= deadline) return false;
    Pause();
  }
  return true;
}

bool IsOwnOrRoots(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

}  // namespace

PortHandout::~PortHandout() {
  if (door_ >= 0) close(door_);
}

Status PortHandout::Open(int listener) {
  listener_ = listener;
  door_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t bytes = sizeof address.sun_family;  // Without a name, the kernel chooses a free one.
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  bool made = door_ >= 0 && bind(door_, generic, bytes) == 0 && listen(door_, SOMAXCONN) == 0;
  bytes = sizeof address;
  made = made && getsockname(door_, generic, &bytes) == 0;
  if (!made) return Status::System("cannot offer the rendezvous to rank 0", errno);
  name_.assign(address.sun_path + 1, bytes - kNameStart);
  return {};
}

void PortHandout::Serve() {
  for (int i = 0; i < kServedPerTurn; ++i) {
    const int fd = accept4(door_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      // Who asks still waits then, and the door stays readable.
      const bool is_short = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      return is_short ? Pause() : void();
    }
    if (IsOwnOrRoots(fd)) SendWithFile(fd, &kWord, sizeof kWord, listener_);
    close(fd);
  }
}

int FetchPort(const std::string& name, Deadline deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() >= sizeof address.sun_path - 1) return -1;
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  int port = -1;
  if (ConnectTo(address, static_cast<socklen_t>(kNameStart + name.size()), fd, deadline) && IsOwnOrRoots(fd)) {
    constexpr Nanoseconds kLongestWait = 10 * kSecond;  // For a launcher that is busy; a stopped one never answers.
    pollfd readable = {fd, POLLIN, 0};
    const Deadline until = std::min(deadline, DeadlineAfter(kLongestWait));
    int ready = 0;
    do {
      const Nanoseconds wait = std::max<Nanoseconds>(until - Now(), 0);
      ready = poll(&readable, 1, static_cast<int>(wait / kMillisecond));
    } while (ready < 0 && errno == EINTR);
    char word = 0;
    bool lost = false;
    if (ready == 1) {
      ReceiveWithFile(fd, &word, sizeof word, &port, &lost);
      if (port >= 0) CloseInForkedChildren(port);
    }
  }
  close(fd);
  return port;
}

}  // namespace annulus
