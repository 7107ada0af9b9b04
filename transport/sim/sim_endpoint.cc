// The simulated endpoint: launches pieces of sends, takes pieces into receives, and fails as a real one does.
#include "transport/sim/sim_endpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace annulus {
namespace {

// Weight of a slice on a wire beyond its data, in bytes, so that empty slices meet back-pressure too.
constexpr size_t kHeaderBytes = 64;
// Smallest part of the window that a piece is launched into, unless it needs less.
constexpr size_t kLeastRoom = 4;
// Percentage of pieces that are as large as possible; the others are cut at random.
constexpr int kWholePiecesPercent = 30;

}  // namespace

template <class Request>
void SimEndpoint::Queue<Request>::Push(Request* request) {
  request->next = nullptr;
  (head == nullptr ? head : tail->next) = request;
  tail = request;
  ++count;
}

template <class Request>
Request* SimEndpoint::Queue<Request>::Pop() {
  Request* request = head;
  head = request->next;
  --count;
  return request;
}

SimEndpoint::SimEndpoint(SimLink* link, int side)
    : link_(link),
      side_(side),
      out_(link->wires[side]),
      in_(link->wires[1 - side]),
      send_pool_(link->shape.limits.send_slots, link->shape.limits.slot_bytes),
      recv_pool_(link->shape.limits.recv_slots, link->shape.limits.slot_bytes) {
  ANNULUS_CHECK(link->ends[side] == nullptr);
  link->ends[side] = this;
}

SimEndpoint::~SimEndpoint() {
  End();
  link_->ends[side_] = nullptr;
}

std::string SimEndpoint::Describe() const {
  const char* kind = limits().shares_memory ? "slots" : "stream";
  return "sim " + std::string(kind) + " rank " + std::to_string(link_->ranks[side_]) + " -> rank " +
         std::to_string(peer());
}

Status SimEndpoint::AcquireSlot(size_t bytes, std::byte** slot) {
  if (!error_.ok()) return error_;
  if (PeerEnded()) return LostStatus();  // The link itself ends once everything is delivered.
  std::byte* taken = send_pool_.Lend(link_->clock);
  if (taken == nullptr) return Status::WouldBlock();
  SimPool::Slot& taken_slot = send_pool_.at(send_pool_.IndexOf(taken));
  taken_slot.lent = true;
  taken_slot.bytes = bytes;
  *slot = taken;
  return Status();
}

Status SimEndpoint::PostSend(Send* send) {
  if (!error_.ok()) return error_;
  if (PeerEnded()) return LostStatus();
  ANNULUS_CHECK(send->bytes <= limits().slot_bytes && send->ready <= send->bytes);
  if (sends_.count == limits().send_slots) return Status::WouldBlock();
  const int slot = send_pool_.IndexOf(send->data);
  ANNULUS_CHECK(slot >= 0 ? send_pool_.at(slot).lent : limits().sends_from.Has(MemoryKind::kHost));
  if (slot >= 0) {
    ANNULUS_CHECK(send->bytes <= send_pool_.at(slot).bytes);
    send_pool_.at(slot).lent = false;
  }
  send->code = Code::kInProgress;
  sends_.Push(send);
  if (launching_ == nullptr) launching_ = send;
  return Status();
}

Status SimEndpoint::PostRecv(Recv* recv) {
  if (!error_.ok()) return error_;
  ANNULUS_CHECK(recv->capacity <= limits().slot_bytes);
  const bool lands = recv->landing != nullptr && limits().lands_in.Has(MemoryKind::kHost);
  if (!lands && slot_recvs_ == limits().recv_slots) return Status::WouldBlock();
  if (!lands) ++slot_recvs_;
  recv->started = false;
  recv->arrived = 0;
  recv->data = nullptr;
  recv->code = Code::kInProgress;
  recvs_.Push(recv);
  return Status();
}

void SimEndpoint::Release(Recv* recv) {
  const int index = recv_pool_.IndexOf(recv->data);
  ANNULUS_CHECK(index >= 0 && recv_pool_.at(index).lent);
  const int sender_slot = std::exchange(recv_pool_.at(index), SimPool::Slot{}).sender;
  recv_pool_.Give(index);
  --slot_recvs_;
  if (sender_slot < 0) return;
  // Shared memory: the slice's slot goes back to its sender, who notices a little later.
  SimClock& clock = *link_->clock;
  const Nanoseconds latency = clock.Between(link_->shape.min_latency, link_->shape.max_latency);
  clock.At(clock.now() + latency, [link = link_, other = 1 - side_, sender_slot] {
    if (link->ends[other] != nullptr) link->ends[other]->send_pool_.Give(sender_slot);
  });
}

Status SimEndpoint::Progress(bool* moved) {
  if (!error_.ok()) return error_;
  if (link_->states[side_]->stopped) return Status();
  if (CompleteSends()) *moved = true;
  for (int64_t bytes = LaunchableBytes(); bytes >= 0; bytes = LaunchableBytes()) {
    Launch(static_cast<uint32_t>(bytes));
    *moved = true;
  }
  if (ReceivePieces()) *moved = true;
  if (error_.ok() && LosesSends()) {
    FailSends(Code::kPeerLost);
    *moved = true;
  }
  return error_;
}

bool SimEndpoint::HasWork() const {
  if (link_->states[side_]->stopped) return false;
  if (!error_.ok() || departed_ > 0 || LaunchableBytes() >= 0 || LosesSends()) return true;
  return !in_.inbox.empty() && (in_.inbox.front().kind != SimPiece::Kind::kData || recvs_.head != nullptr);
}

bool SimEndpoint::LosesSends() const {
  const bool waits = sends_.head != nullptr && on_the_way_ == 0 && departed_ == 0 && LaunchableBytes() < 0;
  return waits && PeerEnded() && recvs_.head == nullptr;
}

int64_t SimEndpoint::LaunchableBytes() const {
  if (launching_ == nullptr || link_->clock->now() < out_.free_at) return -1;
  const uint32_t bytes = launching_->ready - launched_bytes_;
  if (bytes == 0 && launching_->bytes > 0) return -1;
  const size_t window = link_->shape.window_bytes;
  const size_t header = launched_bytes_ == 0 ? kHeaderBytes : 0;
  if (out_.held_bytes + header > window) return -1;
  const size_t room = window - out_.held_bytes - header;
  // A nearly full window is left alone; otherwise pieces of a few bytes would follow each other forever.
  if (room < std::min<size_t>(bytes, window / kLeastRoom)) return -1;
  return static_cast<int64_t>(std::min<size_t>(bytes, room));
}

void SimEndpoint::Launch(uint32_t bytes) {
  SimClock& clock = *link_->clock;
  if (bytes > 1 && !clock.Chance(kWholePiecesPercent)) bytes = static_cast<uint32_t>(clock.Between(1, bytes));
  Send* send = launching_;
  const uint32_t offset = launched_bytes_;
  launched_bytes_ += bytes;
  const bool last = launched_bytes_ == send->bytes;
  if (last) {
    launching_ = send->next;
    launched_bytes_ = 0;
  }
  out_.held_bytes += bytes + (offset == 0 ? kHeaderBytes : 0);
  out_.free_at = clock.now() + 1 + bytes * kMicrosecond / link_->shape.bytes_per_us;
  ++on_the_way_;
  clock.At(out_.free_at, [link = link_, side = side_, send, offset, bytes, last] {
    SimEndpoint* self = link->ends[side];
    // An endpoint that has failed or is gone has given the memory back.
    if (self != nullptr && self->error_.ok()) self->Depart(send, offset, bytes, last);
  });
}

void SimEndpoint::Depart(Send* send, uint32_t offset, uint32_t bytes, bool last) {
  const int slot = limits().shares_memory ? send_pool_.IndexOf(send->data) : -1;
  SimPiece piece{.tag = send->tag, .slice_bytes = send->bytes, .offset = offset, .sender_slot = slot, .data = {}};
  if (bytes > 0) piece.data.assign(send->data + offset, send->data + offset + bytes);
  link_->Carry(side_, std::move(piece));
  --on_the_way_;
  if (last) ++departed_;
}

bool SimEndpoint::CompleteSends() {
  const bool any = departed_ > 0;
  for (; departed_ > 0; --departed_) {
    Send* send = sends_.Pop();
    const int slot = send_pool_.IndexOf(send->data);
    if (slot >= 0 && !limits().shares_memory) send_pool_.Give(slot);
    send->code = Code::kOk;
  }
  return any;
}

bool SimEndpoint::ReceivePieces() {
  bool moved = false;
  while (error_.ok() && !in_.inbox.empty()) {
    const SimPiece::Kind kind = in_.inbox.front().kind;
    if (kind == SimPiece::Kind::kData && recvs_.head == nullptr) break;
    const SimPiece piece = std::move(in_.inbox.front());
    in_.inbox.pop_front();
    moved = true;
    const std::string rank = "rank " + std::to_string(peer());
    switch (kind) {
      case SimPiece::Kind::kEnd:
        Fail(LostStatus());
        break;
      case SimPiece::Kind::kCorrupt:
        Fail({Code::kProtocol, rank + " sent a damaged frame", peer(), 0});
        break;
      case SimPiece::Kind::kData:
        in_.held_bytes -= piece.data.size() + (piece.offset == 0 ? kHeaderBytes : 0);
        OnData(piece);
        break;
    }
  }
  return moved;
}

void SimEndpoint::OnData(const SimPiece& piece) {
  Recv* recv = recvs_.head;
  if (!recv->started) {
    ANNULUS_CHECK(piece.offset == 0);
    recv->tag = piece.tag;
    recv->bytes = piece.slice_bytes;
    if (piece.slice_bytes > recv->capacity) {
      return Fail({Code::kProtocol,
                   "rank " + std::to_string(peer()) + " sent a slice of " + std::to_string(piece.slice_bytes) +
                       " bytes where " + std::to_string(recv->capacity) + " were expected",
                   peer(), 0});
    }
    recv->started = true;
    const bool lands = recv->landing != nullptr && limits().lands_in.Has(MemoryKind::kHost);
    recv->data = lands ? recv->landing : recv_pool_.Lend(link_->clock);
    if (!lands) recv_pool_.at(recv_pool_.IndexOf(recv->data)).sender = piece.sender_slot;
  }
  ANNULUS_CHECK(piece.offset == recv->arrived && recv->data != nullptr);
  if (!piece.data.empty()) std::memcpy(recv->data + recv->arrived, piece.data.data(), piece.data.size());
  recv->arrived += static_cast<uint32_t>(piece.data.size());
  if (recv->arrived < recv->bytes) return;
  const int index = recv_pool_.IndexOf(recv->data);
  if (index >= 0) recv_pool_.at(index).lent = true;
  recvs_.Pop()->code = Code::kOk;
}

// Notifies the peer of the end, after everything that has already left.
void SimEndpoint::End() {
  if (std::exchange(ended_, true)) return;
  link_->Carry(side_, {.kind = SimPiece::Kind::kEnd, .tag = {}, .data = {}});
}

Status SimEndpoint::LostStatus() const {
  return {Code::kPeerLost, "rank " + std::to_string(peer()) + " closed its link", peer(), 0};
}

void SimEndpoint::FailSends(Code code) {
  launching_ = nullptr;
  launched_bytes_ = departed_ = 0;
  while (sends_.head != nullptr) sends_.Pop()->code = code;
}

void SimEndpoint::Fail(Status status) {
  error_ = std::move(status);
  FailSends(error_.code());
  while (recvs_.head != nullptr) recvs_.Pop()->code = error_.code();
  End();
}

bool SimEndpoint::Close() {
  if (error_.ok()) Fail({Code::kAborted, "the link was closed"});
  return true;
}

void SimEndpoint::Die() {
  if (!error_.ok()) return;
  sends_ = {};
  recvs_ = {};
  Fail({Code::kAborted, "the rank died"});
}

}  // namespace annulus
