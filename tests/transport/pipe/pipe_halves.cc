#include "tests/transport/pipe/pipe_halves.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace annulus {
namespace {

size_t Stride(size_t slot_bytes) {
  return (slot_bytes + SlotMemory::kAlignment - 1) / SlotMemory::kAlignment * SlotMemory::kAlignment;
}

}  // namespace

PipeSlots::PipeSlots(SlotMemory* memory, size_t slot_bytes, int slots) : memory_(memory, Bytes(slot_bytes, slots)) {
  std::byte* slot = memory_.data();
  for (int i = 0; i < slots; ++i, slot += Stride(slot_bytes)) free_.push_back(slot);
}

std::byte* PipeSlots::Lend() {
  if (free_.empty()) return nullptr;
  std::byte* const slot = free_.back();
  free_.pop_back();
  return slot;
}

size_t PipeSlots::Bytes(size_t slot_bytes, int slots) { return static_cast<size_t>(slots) * Stride(slot_bytes); }

bool PipeWriter::Write(int fd) {
  bool moved = false;
  blocked_ = false;
  while (CanWrite() && !blocked_) {
    Send* const send = sends_.front();
    head_ = {send->tag, send->bytes};
    const size_t of_head = std::min(sent_bytes_, sizeof head_);
    const size_t of_data = sent_bytes_ - of_head;
    iovec parts[] = {{reinterpret_cast<std::byte*>(&head_) + of_head, sizeof head_ - of_head},
                     {const_cast<std::byte*>(send->data) + of_data, send->bytes - of_data}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = std::size(parts);
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    blocked_ = sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    ended_ = sent < 0 && !blocked_;  // The peer is gone; what it had sent comes first.
    if (sent < 0) break;
    moved = true;
    sent_bytes_ += static_cast<size_t>(sent);
    if (sent_bytes_ < sizeof head_ + send->bytes) continue;
    sent_bytes_ = 0;
    sends_.pop_front();
    slots_.Give(const_cast<std::byte*>(send->data));
    send->code = Code::kOk;
  }
  return moved;
}

void PipeWriter::FailAll(Code code) {
  for (Send* send : std::exchange(sends_, {})) send->code = code;
}

bool PipeReader::Post(Recv* recv) {
  if (held_slots_ == limits_.slots) return false;
  ++held_slots_;
  recv->code = Code::kInProgress;
  recv->started = recv->read_only = false;
  recv->bytes = recv->arrived = 0;
  recv->data = nullptr;
  recvs_.push_back(recv);
  quiet_ = false;
  return true;
}

void PipeReader::Release(Recv* recv) {
  slots_.Give(recv->data);
  --held_slots_;
}

size_t PipeReader::ReadSome(int fd, std::byte* to, size_t bytes, int flags) {
  ssize_t got;
  do {
    got = recv(fd, to, bytes, flags | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) return static_cast<size_t>(got);
  quiet_ = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  ended_ = !quiet_;
  return 0;
}

Status PipeReader::ReadHead(int fd, bool* complete) {
  Recv* const recv = recvs_.front();
  *complete = recv->started;
  if (*complete) return Status();
  head_bytes_ += ReadSome(fd, reinterpret_cast<std::byte*>(&head_) + head_bytes_, sizeof head_ - head_bytes_, 0);
  if (head_bytes_ < sizeof head_) return Status();
  head_bytes_ = 0;
  *complete = recv->started = true;
  recv->tag = head_.tag;
  recv->bytes = static_cast<uint32_t>(std::min<uint64_t>(head_.bytes, UINT32_MAX));
  if (head_.bytes > std::min<uint64_t>(recv->capacity, limits_.slot_bytes)) {
    return {Code::kProtocol,
            "rank " + std::to_string(peer_) + " sent " + std::to_string(head_.bytes) +
                " bytes in one slice, more than there is room for",
            peer_, 0};
  }
  recv->data = slots_.Lend();
  return Status();
}

void PipeReader::FinishRecv() {
  Recv* const recv = recvs_.front();
  recvs_.pop_front();
  recv->code = Code::kOk;
}

Status PipeReader::Read(int fd, bool* moved) {
  quiet_ = false;
  while (!recvs_.empty() && !quiet_ && !ended_) {
    bool has_head = false;
    ANNULUS_RETURN_IF_ERROR(ReadHead(fd, &has_head));
    if (!has_head) continue;
    *moved = true;
    Recv* const recv = recvs_.front();
    if (recv->arrived < recv->bytes) {
      recv->arrived += static_cast<uint32_t>(ReadSome(fd, recv->data + recv->arrived, recv->bytes - recv->arrived, 0));
    }
    if (recv->arrived == recv->bytes) FinishRecv();
  }
  // Nobody wants data, but the end of the stream must be noticed.
  std::byte first;
  unwanted_ = recvs_.empty() && !ended_ && ReadSome(fd, &first, 1, MSG_PEEK) > 0;
  quiet_ |= unwanted_;
  if (ended_) return {Code::kPeerLost, "rank " + std::to_string(peer_) + " closed its pipe", peer_, 0};
  return Status();
}

void PipeReader::FailAll(Code code) {
  for (Recv* recv : std::exchange(recvs_, {})) recv->code = code;
}

}  // namespace annulus
