#include "tests/transport/pipe/pipe_endpoint.h"

#include <utility>

namespace annulus {
namespace {

Limits LimitsOf(const TransportConfig& config) {
  Limits limits;
  limits.slot_bytes = config.slot_bytes;
  limits.send_slots = limits.recv_slots = config.slots;
  return limits;
}

}  // namespace

PipeEndpoint::PipeEndpoint(const TransportConfig& config, int peer, StreamSocket socket)
    : peer_(peer),
      limits_(LimitsOf(config)),
      memory_bytes_(2 * PipeSlots::Bytes(config.slot_bytes, config.slots)),
      socket_(std::move(socket)),
      writer_(config),
      reader_(config, peer) {}

EndpointStats PipeEndpoint::stats() const {
  EndpointStats stats;
  stats.memory.staging = memory_bytes_;
  stats.memory.bookkeeping = sizeof(PipeEndpoint);
  return stats;
}

Status PipeEndpoint::AcquireSlot(size_t, std::byte** slot) {
  if (!status_.ok()) return status_;
  if (writer_.ended()) return LostStatus();  // The link itself ends once everything is delivered.
  std::byte* const taken = writer_.LendSlot();
  if (taken == nullptr) return Status::WouldBlock();
  *slot = taken;
  return Status();
}

Status PipeEndpoint::PostSend(Send* send) {
  if (!status_.ok()) return status_;
  if (writer_.ended()) return LostStatus();
  send->code = Code::kInProgress;
  writer_.Post(send);
  return Status();
}

Status PipeEndpoint::PostRecv(Recv* recv) {
  if (!status_.ok()) return status_;
  return reader_.Post(recv) ? Status() : Status::WouldBlock();
}

void PipeEndpoint::Release(Recv* recv) { reader_.Release(recv); }

Status PipeEndpoint::Progress(bool* moved) {
  if (!status_.ok()) return status_;
  if (writer_.Write(socket_.native_handle())) *moved = true;
  if (writer_.ended() && writer_.has_sends()) {
    writer_.FailAll(Code::kPeerLost);
    *moved = true;
  }
  Status read = reader_.Read(socket_.native_handle(), moved);
  if (!read.ok()) {
    *moved = true;
    Fail(std::move(read));
  }
  return status_;
}

bool PipeEndpoint::Arm() {
  if (!status_.ok() || !reader_.quiet() || writer_.has_work()) return false;
  if (!reader_.unwanted() && !armed_->read) {
    armed_->read = true;
    socket_.async_wait(StreamSocket::wait_read, [armed = armed_](const asio::error_code&) { armed->read = false; });
  }
  if (writer_.blocked() && !armed_->write) {
    armed_->write = true;
    socket_.async_wait(StreamSocket::wait_write, [armed = armed_](const asio::error_code&) { armed->write = false; });
  }
  return true;
}

Status PipeEndpoint::LostStatus() const {
  return {Code::kPeerLost, "rank " + std::to_string(peer_) + " closed its pipe", peer_, 0};
}

void PipeEndpoint::Fail(Status status) {
  status_ = std::move(status);
  writer_.FailAll(status_.code());
  reader_.FailAll(status_.code());
  asio::error_code ignored;
  socket_.close(ignored);
}

bool PipeEndpoint::Close() {
  if (status_.ok()) Fail({Code::kAborted, "the pipe to rank " + std::to_string(peer_) + " was closed here", peer_, 0});
  return true;
}

}  // namespace annulus
