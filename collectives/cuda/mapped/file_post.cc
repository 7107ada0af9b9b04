#include "collectives/cuda/mapped/file_post.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

namespace annulus {
namespace {

// Letters that may wait: two from each of sixteen ranks.
constexpr int kMostWaiting = 64;

// A letter as it travels, with its first `count` pieces.
struct Record {
  uint64_t secret = 0;
  uint64_t process = 0;
  uint64_t run = 0;
  uint64_t count = 0;
  std::array<FilePiece, kMostFiles> pieces;
};
constexpr size_t RecordBytes(size_t pieces) { return offsetof(Record, pieces) + pieces * sizeof(FilePiece); }

struct Attachment {
  alignas(cmsghdr) char bytes[CMSG_SPACE(kMostFiles * sizeof(int))] = {};
};

socklen_t NameOf(const SharedAddress& address, sockaddr_un* name) {
  *name = sockaddr_un();
  name->sun_family = AF_UNIX;
  // Behind a zero: in no file system.
  const int length = std::snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "annulus-files-%016llx",
                                   static_cast<unsigned long long>(address.name));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}

int NewSocket() { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

// Adds the descriptors that came with a message.
void AddFiles(msghdr* message, std::vector<int>* files) {
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr; header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS || header->cmsg_len < CMSG_LEN(0)) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const size_t before = files->size();
    files->resize(before + count);
    std::memcpy(files->data() + before, CMSG_DATA(header), count * sizeof(int));
  }
}

// Reads what came over the connection. False: it is no letter.
bool Read(int connection, uint64_t secret, FileLetter* letter) {
  Record record;
  iovec part{&record, sizeof record};
  Attachment attachment;
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = attachment.bytes;
  message.msg_controllen = CMSG_LEN(kMostFiles * sizeof(int));
  letter->files.reserve(kMostFiles + 1);  // Before there are descriptors to be lost.
  const ssize_t bytes = recvmsg(connection, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (bytes < 0) return false;
  AddFiles(&message, &letter->files);
  const auto size = static_cast<size_t>(bytes);
  if (size < RecordBytes(1) || record.secret != secret || record.count == 0 || record.count > kMostFiles ||
      size != RecordBytes(record.count) || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      letter->files.size() != record.count) {
    return false;
  }
  letter->process = record.process;
  letter->run = record.run;
  letter->pieces.assign(record.pieces.begin(), record.pieces.begin() + static_cast<ptrdiff_t>(record.count));
  return true;
}

}  // namespace

FileLetter& FileLetter::operator=(FileLetter&& other) noexcept {
  process = other.process;
  run = other.run;
  pieces.swap(other.pieces);
  files.swap(other.files);
  return *this;
}

FileLetter::~FileLetter() {
  for (const int file : files) close(file);
}

Status FilePost::Open() {
  if (is_open()) return Status();
  if (getrandom(&address_, sizeof address_, 0) != static_cast<ssize_t>(sizeof address_)) {
    return Status::System("getrandom", errno);
  }
  socket_ = NewSocket();
  if (socket_ < 0) return Status::System("a UNIX socket for descriptors", errno);
  sockaddr_un name;
  const socklen_t bytes = NameOf(address_, &name);
  if (bind(socket_, reinterpret_cast<const sockaddr*>(&name), bytes) == 0 && listen(socket_, kMostWaiting) == 0) {
    return Status();
  }
  Status status = Status::System("a UNIX socket for descriptors", errno);
  Close();
  return status;
}

void FilePost::Close() {
  if (is_open()) close(socket_);
  socket_ = -1;
}

bool FilePost::Take(FileLetter* letter) {
  while (is_open()) {
    const int connection = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection < 0) return false;
    FileLetter taken;
    const bool is_letter = Read(connection, address_.secret, &taken);
    close(connection);
    if (!is_letter) continue;
    *letter = std::move(taken);
    return true;
  }
  return false;
}

Status FilePost::Send(const SharedAddress& to, const FileLetter& letter) {
  Record record;
  record.secret = to.secret;
  record.process = letter.process;
  record.run = letter.run;
  record.count = letter.pieces.size();
  std::copy(letter.pieces.begin(), letter.pieces.end(), record.pieces.begin());
  iovec part{&record, RecordBytes(record.count)};
  Attachment attachment;
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = attachment.bytes;
  message.msg_controllen = CMSG_SPACE(letter.files.size() * sizeof(int));
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(letter.files.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), letter.files.data(), letter.files.size() * sizeof(int));
  const int connection = NewSocket();
  if (connection < 0) return Status::System("a UNIX socket for descriptors", errno);
  sockaddr_un name;
  const socklen_t bytes = NameOf(to, &name);
  const bool is_sent = connect(connection, reinterpret_cast<const sockaddr*>(&name), bytes) == 0 &&
                       sendmsg(connection, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(part.iov_len);
  Status status = is_sent ? Status() : Status::System("sending descriptors over a UNIX socket", errno);
  close(connection);
  return status;
}

}  // namespace annulus
