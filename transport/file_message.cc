#include "transport/file_message.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cstring>

namespace annulus {
namespace {

// Room for one descriptor, in a form that the kernel accepts. CMSG_SPACE may have room for a second one. CMSG_LEN,
// which is the size that the kernel gets, has not: the kernel drops what does not fit, and says so.
struct Attachment {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))] = {};
};

msghdr MessageOf(iovec* data, Attachment* attachment) {
  msghdr message = {};
  message.msg_iov = data;
  message.msg_iovlen = 1;
  message.msg_control = attachment->bytes;
  message.msg_controllen = CMSG_LEN(sizeof(int));
  return message;
}

}  // namespace

ssize_t SendWithFile(int socket, const void* data, size_t bytes, int fd) {
  iovec part{const_cast<void*>(data), bytes};
  Attachment attachment;
  msghdr message = MessageOf(&part, &attachment);
  if (fd < 0) {
    message.msg_control = nullptr;
    message.msg_controllen = 0;
  } else {
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t ReceiveWithFile(int socket, void* data, size_t bytes, int* fd, bool* lost) {
  *fd = -1;
  *lost = false;
  iovec part{data, bytes};
  Attachment attachment;
  msghdr message = MessageOf(&part, &attachment);
  const ssize_t received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0) return received;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    std::memcpy(fd, CMSG_DATA(header), sizeof(*fd));
  }
  *lost = (message.msg_flags & MSG_CTRUNC) != 0;
  return received;
}

bool IsShareableFile(int fd) {
  struct stat file;
  struct statfs system;
  const int seals = fcntl(fd, F_GET_SEALS);
  return fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && seals >= 0 && (seals & F_SEAL_SHRINK) != 0 &&
         fstatfs(fd, &system) == 0 && system.f_type != HUGETLBFS_MAGIC;
}

}  // namespace annulus
