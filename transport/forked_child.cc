#include "transport/forked_child.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace annulus {
namespace {

// The inode of the socket, which no other socket has at the same time; 0 if it is none.
ino_t InodeOfSocket(int fd) {
  struct stat found {};
  return fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

class Sockets {
 public:
  // The table is in no thread's hands while the process forks.
  Sockets() {
    pthread_atfork([] { OfProcess().mu_.lock(); }, [] { OfProcess().mu_.unlock(); },
                   [] {
                     OfProcess().CloseAll();
                     OfProcess().mu_.unlock();
                   });
  }

  // Never destroyed: a process may fork while it ends.
  static Sockets& OfProcess() {
    static Sockets& sockets = *std::make_unique<Sockets>().release();
    return sockets;
  }

  void Add(int fd) {
    const ino_t inode = InodeOfSocket(fd);
    const std::lock_guard<std::mutex> lock(mu_);
    const auto index = static_cast<size_t>(fd);
    try {
      if (index >= inodes_.size()) inodes_.resize(index + 1);
    } catch (const std::bad_alloc&) {
      return;
    }
    inodes_[index] = inode;
  }

 private:
  // Calls only what a child of a process with threads may call.
  void CloseAll() {
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (size_t i = 0; i < inodes_.size(); ++i) {
      const int fd = static_cast<int>(i);
      if (inodes_[i] == 0 || InodeOfSocket(fd) != inodes_[i]) continue;
      if (nothing < 0 || dup3(nothing, fd, O_CLOEXEC) < 0) close(fd);
    }
    if (nothing >= 0) close(nothing);
  }

  std::mutex mu_;
  std::vector<ino_t> inodes_;  // By descriptor; 0 where there has been no such socket.
};

}  // namespace

void CloseInForkedChildren(int socket) { Sockets::OfProcess().Add(socket); }

}  // namespace annulus
