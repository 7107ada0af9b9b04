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

constexpr const char* kSocket = "a UNIX socket for descriptors";

// The name of a sender's socket, or of that where its letters to a post go (`to` is not 0).
struct SocketName {
  explicit SocketName(uint64_t from, uint64_t to = 0) {
    name.sun_family = AF_UNIX;
    // Behind a zero: in no file system.
    const int length = std::snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "annulus-files-%016llx-%016llx",
                                     static_cast<unsigned long long>(from), static_cast<unsigned long long>(to));
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }

  sockaddr_un name{};
  socklen_t bytes = 0;
};

int NewSocket() { return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

Status MakeRandom(void* data, size_t bytes) {
  return getrandom(data, bytes, 0) == static_cast<ssize_t>(bytes) ? Status() : Status::System("getrandom", errno);
}

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

// Reads what came to the socket. False: nothing (*has_come), or no letter.
bool Read(int socket, uint64_t secret, FileLetter* letter, bool* has_come) {
  Record record;
  iovec part{&record, sizeof record};
  Attachment attachment;
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = attachment.bytes;
  message.msg_controllen = CMSG_LEN(kMostFiles * sizeof(int));
  letter->files.reserve(kMostFiles + 1);  // Before there are descriptors to be lost.
  const ssize_t bytes = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  *has_come = bytes >= 0;
  if (!*has_come) return false;
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

FileSender::~FileSender() {
  if (socket_ >= 0) close(socket_);
}

Status FileSender::Open() {
  if (socket_ >= 0) return Status();
  ANNULUS_RETURN_IF_ERROR(MakeRandom(&name_, sizeof name_));
  const int opened = NewSocket();
  if (opened < 0) return Status::System(kSocket, errno);
  const SocketName name(name_);
  // It takes nothing that others might send there.
  if (bind(opened, name.get(), name.bytes) != 0 || shutdown(opened, SHUT_RD) != 0) {
    Status status = Status::System(kSocket, errno);
    close(opened);
    return status;
  }
  socket_ = opened;
  return Status();
}

Status FileSender::Send(const SharedAddress& to, const FileLetter& letter) {
  Record record;
  record.secret = to.secret;
  record.process = letter.process;
  record.run = letter.run;
  record.count = letter.pieces.size();
  std::copy(letter.pieces.begin(), letter.pieces.end(), record.pieces.begin());
  iovec part{&record, RecordBytes(record.count)};
  SocketName name(name_, to.name);
  Attachment attachment;
  msghdr message = {};
  message.msg_name = &name.name;
  message.msg_namelen = name.bytes;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = attachment.bytes;
  message.msg_controllen = CMSG_SPACE(letter.files.size() * sizeof(int));
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(letter.files.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), letter.files.data(), letter.files.size() * sizeof(int));
  if (sendmsg(socket_, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(part.iov_len)) return Status();
  return Status::System("sending descriptors over a UNIX socket", errno);
}

Status FilePost::Await(uint64_t from) {
  if (std::ranges::find(boxes_, from, &Box::from) != boxes_.end()) return Status();
  if (boxes_.empty()) ANNULUS_RETURN_IF_ERROR(MakeRandom(&address_, sizeof address_));
  boxes_.reserve(boxes_.size() + 1);
  const int opened = NewSocket();
  if (opened < 0) return Status::System(kSocket, errno);
  const SocketName sender(from);
  const SocketName own(from, address_.name);
  // Connected before it has a name: so nobody but the sender can ever have sent anything.
  if (connect(opened, sender.get(), sender.bytes) != 0 || bind(opened, own.get(), own.bytes) != 0) {
    Status status = Status::System(kSocket, errno);
    close(opened);
    return status;
  }
  boxes_.push_back({from, opened});
  return Status();
}

void FilePost::Close() {
  for (const Box& box : boxes_) close(box.socket);
  boxes_.clear();
}

bool FilePost::Take(uint64_t from, FileLetter* letter) {
  const auto box = std::ranges::find(boxes_, from, &Box::from);
  if (box == boxes_.end()) return false;
  bool has_come = true;
  for (int look = 0; look < kMostLooks && has_come; ++look) {
    FileLetter taken;
    if (!Read(box->socket, address_.secret, &taken, &has_come)) continue;
    *letter = std::move(taken);
    return true;
  }
  return false;
}

}  // namespace annulus
