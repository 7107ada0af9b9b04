#include "transport/shm/shm_handover.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "transport/file_message.h"
#include "transport/security/door.h"

namespace annulus {
namespace {

constexpr char kFileByte = 'F';
constexpr char kMappedByte = 'M';

bool NothingYet(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Status ShmHandover::Start(int slots, size_t slot_bytes) {
  if (!creates_) return Status();
  ANNULUS_RETURN_IF_ERROR(ShmMapping::Create(slots, slot_bytes, &mapping_));
  // This is the first byte that this side sends, so it fits.
  if (SendWithFile(socket_->native_handle(), &kFileByte, 1, mapping_->fd()) != 1) {
    return Lost("sending the memory file", errno);
  }
  mapping_->CloseFd();
  return Status();
}

Status ShmHandover::Continue() {
  if (done_) return Status();
  if (creates_) {
    char byte = 0;
    const ssize_t received = recv(socket_->native_handle(), &byte, 1, MSG_DONTWAIT);
    if (received < 0 && NothingYet(errno)) return Status();
    if (received <= 0) return Lost("waiting for it to map the memory file", received < 0 ? errno : 0);
    if (byte != kMappedByte) return Refuse("an unknown answer to the memory file");
    done_ = true;
    return Status();
  }
  int fd = -1;
  ANNULUS_RETURN_IF_ERROR(ReceiveFile(&fd));
  if (fd < 0) return Status();
  Status opened = ShmMapping::Open(fd, &mapping_);
  if (!opened.ok()) {
    const int culprit = opened.code() == Code::kProtocol ? peer_ : rank_;
    return {opened.code(), opened.message() + " (the memory file of rank " + std::to_string(peer_) + ")", culprit,
            opened.os_errno()};
  }
  mapping_->CloseFd();
  if (send(socket_->native_handle(), &kMappedByte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1) {
    return Lost("confirming the memory file", errno);
  }
  done_ = true;
  return Status();
}

// Leaves *fd at -1 when nothing has arrived yet.
Status ShmHandover::ReceiveFile(int* fd) {
  char byte = 0;
  bool lost = false;
  const ssize_t received = ReceiveWithFile(socket_->native_handle(), &byte, 1, fd, &lost);
  if (received < 0 && NothingYet(errno)) return Status();
  if (received <= 0) return Lost("waiting for the memory file", received < 0 ? errno : 0);
  if (*fd >= 0 && byte == kFileByte && !lost) return Status();
  if (*fd < 0 && lost) {
    return OutOfDescriptors(rank_, "the memory file of rank " + std::to_string(peer_), EMFILE);
  }
  if (*fd >= 0) close(*fd);
  *fd = -1;
  return Refuse("no memory file where one belongs");
}

Status ShmHandover::Lost(const char* what, int os_errno) const {
  std::string text = "rank " + std::to_string(peer_) + " closed its shared memory link during set-up, while " + what;
  if (os_errno != 0) text += ": " + std::string(std::strerror(os_errno));
  return {Code::kPeerLost, std::move(text), peer_, os_errno};
}

Status ShmHandover::Refuse(const char* what) const {
  return {Code::kProtocol, "shared memory: rank " + std::to_string(peer_) + " sent " + what, peer_, 0};
}

}  // namespace annulus
