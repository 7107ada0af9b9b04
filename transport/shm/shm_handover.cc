#include "transport/shm/shm_handover.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "transport/file_message.h"
#include "transport/security/door.h"

namespace annulus {
namespace {

constexpr char kFileByte = 'F';
constexpr char kMappedByte = 'M';

bool NothingYet(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

bool HasLeft(int error) { return error == EPIPE || error == ECONNRESET; }

// ENOBUFS: the kernel has no memory for messages.
bool NotForNow(int error) { return NothingYet(error) || error == ETOOMANYREFS || error == ENOBUFS; }

}  // namespace

Status ShmHandover::Start(int slots, size_t slot_bytes) {
  if (!creates_) return Status();
  ANNULUS_RETURN_IF_ERROR(ShmMapping::Create(slots, slot_bytes, &mapping_));
  return SendFile();
}

Status ShmHandover::SendFile() {
  const int before =
      std::exchange(refused_, SendWithFile(socket_->native_handle(), &kFileByte, 1, mapping_->fd()) == 1 ? 0 : errno);
  if (NotForNow(refused_)) return Status();
  // The peer was the first to give up. What kept it waiting says more than that it has gone.
  if (HasLeft(refused_) && before != 0 && !NothingYet(before)) {
    refused_ = before;
    return Late();
  }
  if (refused_ != 0) return Failed("sending the memory file", refused_);
  mapping_->CloseFd();
  return Status();
}

Status ShmHandover::Continue() {
  if (done_) return Status();
  if (must_send()) {
    ANNULUS_RETURN_IF_ERROR(SendFile());
    if (must_send()) return Status();
  }
  if (creates_) {
    char byte = 0;
    const ssize_t received = recv(socket_->native_handle(), &byte, 1, MSG_DONTWAIT);
    if (received < 0 && NothingYet(errno)) return Status();
    if (received <= 0) return Failed("waiting for it to map the memory file", received < 0 ? errno : 0);
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
    return Failed("confirming the memory file", errno);
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
  if (received <= 0) return Failed("waiting for the memory file", received < 0 ? errno : 0);
  if (*fd >= 0 && byte == kFileByte && !lost) return Status();
  if (*fd < 0 && lost) {
    return OutOfDescriptors(rank_, "the memory file of rank " + std::to_string(peer_), EMFILE);
  }
  if (*fd >= 0) close(*fd);
  *fd = -1;
  return Refuse("no memory file where one belongs");
}

Status ShmHandover::Late() const {
  if (refused_ == 0) {
    return {Code::kTimeout, "timed out while rank " + std::to_string(peer_) + " sets up its shared memory link", peer_,
            0};
  }
  std::string text = "rank " + std::to_string(rank_) + " could not pass the memory file of its link to rank " +
                     std::to_string(peer_) + " in time: " + std::strerror(refused_);
  rlimit limit{};
  if (refused_ == ETOOMANYREFS && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    text +=
        " (ETOOMANYREFS; its user's processes on this host have passed more files that nobody has taken than its "
        "limit, ulimit -n, which is " +
        std::to_string(limit.rlim_cur) + ")";
  }
  return {Code::kSystem, std::move(text), rank_, refused_};
}

Status ShmHandover::Failed(const char* what, int os_errno) const {
  if (os_errno == 0 || HasLeft(os_errno)) return Lost(what, os_errno);
  const Status refused = Status::System("shared memory link to rank " + std::to_string(peer_) + ", " + what, os_errno);
  return {refused.code(), refused.message(), rank_, os_errno};
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
