#include "tests/transport/pipe/pipe_endpoint.h"

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

Limits LimitsOf(const TransportConfig& config) {
  Limits limits;
  limits.slot_bytes = config.slot_bytes;
  limits.send_slots = limits.recv_slots = config.slots;
  return limits;
}

}  // namespace

PipeSlots::PipeSlots(SlotMemory* memory, size_t slot_bytes, int slots) : memory_(memory, Bytes(slot_bytes, slots)) {
  std::byte* slot = memory_.data();
  for (int i = 0; i < slots; ++i, slot += Stride(slot_bytes)) free_.push_back(slot);
}

std::byte* PipeSlots::Take() {
  if (free_.empty()) return nullptr;
  std::byte* const slot = free_.back();
  free_.pop_back();
  return slot;
}

size_t PipeSlots::Bytes(size_t slot_bytes, int slots) { return static_cast<size_t>(slots) * Stride(slot_bytes); }

PipeEndpoint::PipeEndpoint(const TransportConfig& config, int peer, StreamSocket socket)
    : peer_(peer),
      limits_(LimitsOf(config)),
      memory_bytes_(2 * PipeSlots::Bytes(config.slot_bytes, config.slots)),
      socket_(std::move(socket)),
      send_slots_(config.slot_memory, config.slot_bytes, config.slots),
      recv_slots_(config.slot_memory, config.slot_bytes, config.slots) {}

EndpointStats PipeEndpoint::stats() const {
  EndpointStats stats;
  stats.memory.staging = memory_bytes_;
  stats.memory.bookkeeping = sizeof(PipeEndpoint);
  return stats;
}

Status PipeEndpoint::AcquireSlot(std::byte** slot) {
  if (!status_.ok()) return status_;
  std::byte* const taken = send_slots_.Take();
  if (taken == nullptr) return Status::WouldBlock();
  *slot = taken;
  return Status();
}

Status PipeEndpoint::PostSend(Send* send) {
  if (!status_.ok()) return status_;
  send->code = Code::kInProgress;
  sends_.push_back(send);
  return Status();
}

Status PipeEndpoint::PostRecv(Recv* recv) {
  if (!status_.ok()) return status_;
  if (held_slots_ == limits_.recv_slots) return Status::WouldBlock();
  ++held_slots_;
  recv->code = Code::kInProgress;
  recv->started = recv->read_only = false;
  recv->bytes = recv->arrived = 0;
  recv->data = nullptr;
  recvs_.push_back(recv);
  quiet_ = false;
  return Status();
}

void PipeEndpoint::Release(Recv* recv) {
  recv_slots_.Give(recv->data);
  --held_slots_;
}

bool PipeEndpoint::Write() {
  bool moved = false;
  write_blocked_ = false;
  while (CanWrite() && !write_blocked_) {
    Send* const send = sends_.front();
    out_head_ = {send->tag, send->bytes};
    const size_t of_head = std::min(sent_bytes_, sizeof out_head_);
    const size_t of_data = sent_bytes_ - of_head;
    iovec parts[] = {{reinterpret_cast<std::byte*>(&out_head_) + of_head, sizeof out_head_ - of_head},
                     {const_cast<std::byte*>(send->data) + of_data, send->bytes - of_data}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = std::size(parts);
    const ssize_t sent = sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    write_blocked_ = sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    write_ended_ = sent < 0 && !write_blocked_;  // The peer is gone; what it had sent comes first.
    if (sent < 0) break;
    moved = true;
    sent_bytes_ += static_cast<size_t>(sent);
    if (sent_bytes_ < sizeof out_head_ + send->bytes) continue;
    sent_bytes_ = 0;
    sends_.pop_front();
    send_slots_.Give(const_cast<std::byte*>(send->data));
    send->code = Code::kOk;
  }
  return moved;
}

size_t PipeEndpoint::ReadSome(std::byte* to, size_t bytes, int flags) {
  ssize_t got;
  do {
    got = recv(socket_.native_handle(), to, bytes, flags | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) return static_cast<size_t>(got);
  quiet_ = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  read_ended_ = !quiet_;
  return 0;
}

// Whether the first receive has its head.
bool PipeEndpoint::ReadHead() {
  Recv* const recv = recvs_.front();
  if (recv->started) return true;
  head_bytes_ += ReadSome(reinterpret_cast<std::byte*>(&in_head_) + head_bytes_, sizeof in_head_ - head_bytes_, 0);
  if (head_bytes_ < sizeof in_head_) return false;
  head_bytes_ = 0;
  recv->started = true;
  recv->tag = in_head_.tag;
  recv->bytes = static_cast<uint32_t>(std::min<uint64_t>(in_head_.bytes, UINT32_MAX));
  if (in_head_.bytes > std::min<uint64_t>(recv->capacity, limits_.slot_bytes)) {
    Fail({Code::kProtocol,
          "rank " + std::to_string(peer_) + " sent " + std::to_string(in_head_.bytes) +
              " bytes in one slice, more than there is room for",
          peer_, 0});
    return false;
  }
  recv->data = recv_slots_.Take();
  return true;
}

void PipeEndpoint::FinishRecv() {
  Recv* const recv = recvs_.front();
  recvs_.pop_front();
  recv->code = Code::kOk;
}

bool PipeEndpoint::Read() {
  bool moved = false;
  quiet_ = false;
  while (status_.ok() && !recvs_.empty() && !quiet_ && !read_ended_) {
    if (!ReadHead()) continue;
    moved = true;
    Recv* const recv = recvs_.front();
    if (recv->arrived < recv->bytes) {
      recv->arrived += static_cast<uint32_t>(ReadSome(recv->data + recv->arrived, recv->bytes - recv->arrived, 0));
    }
    if (recv->arrived == recv->bytes) FinishRecv();
  }
  // Nobody wants data, but the end of the stream must be noticed.
  std::byte first;
  unwanted_ = status_.ok() && recvs_.empty() && !read_ended_ && ReadSome(&first, 1, MSG_PEEK) > 0;
  quiet_ |= unwanted_;
  if (status_.ok() && read_ended_) {
    Fail({Code::kPeerLost, "rank " + std::to_string(peer_) + " closed its pipe", peer_, 0});
  }
  return moved || !status_.ok();
}

Status PipeEndpoint::Progress(bool* moved) {
  if (!status_.ok()) return status_;
  const bool wrote = Write();
  if (Read() || wrote) *moved = true;
  return status_;
}

bool PipeEndpoint::Arm() {
  if (!status_.ok() || !quiet_ || (CanWrite() && !write_blocked_)) return false;
  if (!unwanted_ && !armed_->read) {
    armed_->read = true;
    socket_.async_wait(StreamSocket::wait_read, [armed = armed_](const asio::error_code&) { armed->read = false; });
  }
  if (write_blocked_ && !armed_->write) {
    armed_->write = true;
    socket_.async_wait(StreamSocket::wait_write, [armed = armed_](const asio::error_code&) { armed->write = false; });
  }
  return true;
}

void PipeEndpoint::Fail(Status status) {
  status_ = std::move(status);
  for (Send* send : std::exchange(sends_, {})) send->code = status_.code();
  for (Recv* recv : std::exchange(recvs_, {})) recv->code = status_.code();
  asio::error_code ignored;
  socket_.close(ignored);
}

bool PipeEndpoint::Close() {
  if (status_.ok()) Fail({Code::kAborted, "the pipe to rank " + std::to_string(peer_) + " was closed here", peer_, 0});
  return true;
}

}  // namespace annulus
