#include "transport/tcp/tcp_endpoint.h"

#include <poll.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/clock.h"

namespace annulus {
namespace {

// How long after PrepareClose() the peer's kernel may take to acknowledge completed sends. A round trip is far below
// it, and a peer that does not answer within it has stalled or is gone.
constexpr Nanoseconds kLinger = 200 * kMillisecond;

}  // namespace

TcpEndpoint::TcpEndpoint(const TcpEndpointConfig& config, std::vector<StreamSocket> sockets)
    : config_(config),
      send_slots_(config.slot_bytes, config.slots),
      recv_slots_(config.slot_bytes, config.slots),
      sends_(&send_slots_),
      receives_(&recv_slots_, config.slot_bytes, config.slots, static_cast<int>(sockets.size())) {
  limits_.slot_bytes = config.slot_bytes;
  limits_.send_slots = limits_.recv_slots = config.slots;
  limits_.sends_user_memory = true;
  limits_.lands_in_user_memory = true;
  const bool striped = sockets.size() > 1;
  // Of several sockets, whichever is free takes the next slice; so there is no one place to look for it.
  if (!striped)
    limits_.short_bytes = static_cast<uint32_t>(std::min<size_t>(config.slot_bytes, TcpLane::kMostShortBytes));
  for (StreamSocket& socket : sockets) {
    lanes_.push_back(std::make_unique<TcpLane>(std::move(socket), striped, config.checksum));
  }
}

LinkMemory TcpEndpoint::Memory() const {
  LinkMemory memory;
  memory.staging = send_slots_.bytes() + recv_slots_.bytes();
  for (const auto& lane : lanes_) memory.bookkeeping += lane->memory_bytes();
  return memory;
}

Status TcpEndpoint::AcquireSlot(std::byte** slot) {
  if (!status_.ok()) return status_;
  std::byte* taken = send_slots_.Take();
  if (taken == nullptr) return Status::WouldBlock();
  *slot = taken;
  return Status();
}

Status TcpEndpoint::PostSend(Send* send) {
  if (!status_.ok()) return status_;
  sends_.Post(send);
  return Status();
}

Status TcpEndpoint::PostRecv(Recv* recv) {
  if (!status_.ok()) return status_;
  return receives_.Post(recv) ? Status() : Status::WouldBlock();
}

Status TcpEndpoint::SendShort(const Tag& tag, const std::byte* data, uint32_t bytes) {
  if (!status_.ok()) return status_;
  if (!lanes_[0]->write_failed() && !lanes_[0]->SendShort(tag, data, bytes, &sends_)) return Status::WouldBlock();
  return lanes_[0]->write_failed() ? LostStatus() : Status();
}

void TcpEndpoint::Release(Recv* recv) { receives_.Release(recv); }

Status TcpEndpoint::Progress(bool* moved) {
  if (!status_.ok()) return status_;
  Status broken = MoveData(moved);
  if (!broken.ok()) {
    Fail({broken.code(), "rank " + std::to_string(config_.peer) + ": " + broken.message() + " (" + Describe() + ")",
          config_.peer, 0});
    *moved = true;
  } else if (IsOver()) {
    Fail(LostStatus());
    *moved = true;
  }
  return status_;
}

Status TcpEndpoint::MoveData(bool* moved) {
  if (!ending_) {
    for (auto& lane : lanes_) lane->Transmit(&sends_, moved);
  }
  for (auto& lane : lanes_) ANNULUS_RETURN_IF_ERROR(lane->Receive(&receives_, moved));
  return Status();
}

// Notes the end of any lane. Returns whether nothing that is posted, or could still be delivered, can move any more.
bool TcpEndpoint::IsOver() {
  auto ended = [](const auto& lane) { return lane->read_ended() || lane->write_failed(); };
  if (!ending_) {
    ending_ = std::any_of(lanes_.begin(), lanes_.end(), ended);
    if (!ending_) return false;
    for (auto& lane : lanes_) lane->ShutDownWrites();
  }
  bool all_ended = true;
  for (const auto& lane : lanes_) {
    if (!lane->read_ended() && !lane->paused()) return false;  // Its end, or more data, is still to come.
    all_ended &= lane->read_ended();
  }
  // A paused lane waits for a receive that only the engine can post; with neither sends nor receives pending, it may.
  return all_ended || !receives_.empty() || !sends_.empty();
}

Status TcpEndpoint::LostStatus() const {
  int error = 0;
  bool cut_short = false;
  for (const auto& lane : lanes_) {
    if (error == 0) error = lane->failed_errno();
    cut_short |= lane->cut_short();
  }
  std::string text = "rank " + std::to_string(config_.peer);
  text += error == 0 ? " closed its connection" : " was lost: " + std::generic_category().message(error);
  if (cut_short) text += ", in the middle of a slice";
  return {Code::kPeerLost, text + " (" + Describe() + ")", config_.peer, error};
}

void TcpEndpoint::Fail(Status status) {
  status_ = std::move(status);
  sends_.FailAll(status_.code());
  receives_.FailAll(status_.code());
  for (auto& lane : lanes_) lane->CloseSocket();
}

bool TcpEndpoint::Arm() {
  if (!status_.ok()) return false;
  if (ending_ && IsOver()) return false;
  return std::all_of(lanes_.begin(), lanes_.end(), [this](auto& lane) { return lane->Arm(sends_, receives_); });
}

uint64_t TcpEndpoint::Retransmits() {
  uint64_t retransmits = 0;
  for (auto& lane : lanes_) retransmits += lane->Retransmits();
  return retransmits;
}

void TcpEndpoint::PrepareClose() {
  if (!status_.ok() || linger_end_ != 0) return;
  for (auto& lane : lanes_) lane->ShutDownWrites();
  linger_end_ = DeadlineAfter(kLinger);
}

void TcpEndpoint::Close() {
  if (!status_.ok()) return;
  PrepareClose();
  if (sends_.empty() && !ending_) Linger();
  Fail({Code::kAborted, "the link with rank " + std::to_string(config_.peer) + " was closed"});
}

// A socket that is closed with unread data resets the connection, and the reset overtakes what was sent; so what still
// comes in is read until the peer has acknowledged everything.
void TcpEndpoint::Linger() {
  auto drained = [](auto& lane) { return lane->Drain(); };
  while (!std::all_of(lanes_.begin(), lanes_.end(), drained) && Now() < linger_end_) {
    poll(nullptr, 0, 1);  // Acknowledgements raise no event to wait for.
  }
}

}  // namespace annulus
