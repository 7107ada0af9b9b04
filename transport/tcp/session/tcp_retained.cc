#include "transport/tcp/session/tcp_retained.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace annulus {
namespace {

constexpr size_t kFrameCopyBytes = kFrameHeaderBytes + TcpRetained::kMostCopied;
constexpr size_t kPiecesPerFrame = 2;  // Header and payload.

// Room for copies that are made at once: as many as are worth a system call that confirms them, several times over.
constexpr size_t kMostAtOnce = size_t{256} << 10;
constexpr size_t kMostToConfirm = size_t{8} << 10;  // So few that they stay in the fastest cache.
// The least with which a link works well: two of its largest frames of one kind, four of the other.
constexpr size_t kLeastShorts = 2;
constexpr size_t kLeastFrames = 4;

}  // namespace

TcpRetained::Room TcpRetained::RoomFor(size_t slot_bytes, int slots, int lanes, uint32_t most_short) {
  const size_t share = static_cast<size_t>(slots) * slot_bytes / static_cast<size_t>(lanes);
  const size_t shorts = most_short > 0 ? kLeastShorts * (kFrameHeaderBytes + most_short) : 0;
  Room room;
  room.late = std::max(share, slot_bytes);
  room.at_once = std::clamp(share / 4, std::max(shorts, kLeastFrames * kFrameCopyBytes), kMostAtOnce);
  return room;
}

TcpRetained::TcpRetained(bool keeps, const Room& room, size_t pieces)
    : keeps_(keeps),
      at_once_(room.at_once),
      late_(room.late),
      to_confirm_(std::min(kMostToConfirm, room.at_once / 4)),
      pieces_(pieces) {}

TcpRetained::TcpRetained(const Room& room) : TcpRetained(true, room, kMostPieces) { ANNULUS_CHECK(HasRoom(1)); }

TcpRetained::TcpRetained(uint32_t most_short)
    : TcpRetained(false, {.at_once = most_short > 0 ? kFrameHeaderBytes + most_short : 0}, 1) {}

// One frame more: the end of the ring may stay empty.
bool TcpRetained::HasRoom(size_t frames) const {
  return num_pieces_ + kPiecesPerFrame * frames <= pieces_.size() &&
         at_once_.used() + (frames + 1) * kFrameCopyBytes <= at_once_.bytes();
}

bool TcpRetained::HasRoomForShort(size_t bytes) const {
  return keeps_ ? num_pieces_ < pieces_.size() && at_once_.Fits(bytes) : num_pieces_ == 0;
}

TcpRetained::Piece* TcpRetained::AddPiece() {
  ANNULUS_CHECK(num_pieces_ < pieces_.size());
  if (!has_lent()) ++first_lent_;
  Piece* const piece = &PieceAt(num_pieces_++);
  *piece = Piece();
  return piece;
}

std::byte* TcpRetained::AddCopy(size_t bytes) {
  std::byte* const data = at_once_.Add(bytes);
  Piece* last = num_pieces_ > 0 ? &PieceAt(num_pieces_ - 1) : nullptr;
  if (last == nullptr || last->ring != &at_once_ || last->data + last->bytes != data) {
    last = AddPiece();
    last->data = data;
    last->ring = &at_once_;
  }
  last->bytes += bytes;
  last->ring_end = at_once_.end();
  end_ += bytes;
  return data;
}

bool TcpRetained::AddWritten(const std::byte* header, Send* send) {
  ANNULUS_CHECK(keeps_ && !has_unwritten());
  const bool copies = send->bytes <= kMostCopied;
  std::byte* const to = AddCopy(kFrameHeaderBytes + (copies ? send->bytes : 0));
  std::memcpy(to, header, kFrameHeaderBytes);
  if (!copies) {
    const size_t index = num_pieces_;
    Piece* const piece = AddPiece();
    piece->data = send->data;
    piece->bytes = send->bytes;
    piece->lent = send;
    end_ += send->bytes;
    lent_bytes_ += send->bytes;
    first_lent_ = std::min(first_lent_, index);
  } else if (send->bytes > 0) {
    std::memcpy(to + kFrameHeaderBytes, send->data, send->bytes);
  }
  next_ = end_;
  return copies;
}

void TcpRetained::List(IoList* list) const {
  uint64_t at = begin_;
  for (size_t i = 0; i < num_pieces_ && list->count() < IoList::kMost; ++i) {
    const Piece& piece = PieceAt(i);
    const size_t skip = next_ > at ? std::min<uint64_t>(next_ - at, piece.bytes) : 0;
    if (skip < piece.bytes) list->Add(piece.data + skip, piece.bytes - skip);
    at += piece.bytes;
  }
}

void TcpRetained::Wrote(size_t bytes) {
  next_ += bytes;
  ANNULUS_CHECK(next_ <= end_);
  if (!keeps_ && next_ == end_) Confirm(end_, [](Send*) {});
}

void TcpRetained::FindLent() {
  while (has_lent() && PieceAt(first_lent_).lent == nullptr) ++first_lent_;
}

Send* TcpRetained::DropFirst() {
  const Piece piece = PieceAt(0);
  begin_ += piece.bytes;
  first_ = SlotOf(1);
  --num_pieces_;
  if (first_lent_ > 0) --first_lent_;
  FindLent();
  piece.ring != nullptr ? piece.ring->FreeTo(piece.ring_end) : DropLent(piece.bytes);
  return piece.lent;
}

void TcpRetained::ShortenFirst(size_t by) {
  Piece& piece = PieceAt(0);
  piece.data += by;
  piece.bytes -= by;
  begin_ += by;
  piece.ring != nullptr ? piece.ring->FreeTo(piece.ring_end - piece.bytes) : DropLent(by);
}

// What was lent first is copied first, so late copies are given back in their order.
Send* TcpRetained::CopyLent() {
  Piece& piece = PieceAt(first_lent_);
  std::byte* const to = late_.Add(piece.bytes);
  std::memcpy(to, piece.data, piece.bytes);
  DropLent(piece.bytes);
  piece.data = to;
  piece.ring = &late_;
  piece.ring_end = late_.end();
  Send* const send = std::exchange(piece.lent, nullptr);
  FindLent();
  return send;
}

}  // namespace annulus
