#include "transport/tcp/tcp_retained.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace annulus {
namespace {

// Pieces in use at once: two for each frame, header and payload. The frames of one write must fit beside many others.
constexpr size_t kMostPieces = 8 * TcpRetained::kMostFrames;
constexpr size_t kFrameCopyBytes = kFrameHeaderBytes + TcpRetained::kMostCopied;

}  // namespace

TcpRetained::TcpRetained(bool keeps, uint32_t most_short)
    : keeps_(keeps),
      copies_(keeps            ? kCopyBytes
              : most_short > 0 ? kFrameHeaderBytes + most_short
                               : 0),
      late_(keeps ? kLateCopyBytes : 0),
      pieces_(keeps ? kMostPieces : 1) {
  static_assert(kMostFrames * kFrameCopyBytes * 3 / 2 < kCopyBytes);
}

// Copies are contiguous, so the end of the ring may stay empty behind one that does not fit there.
bool TcpRetained::HasRoom() const {
  if (!keeps_) return num_pieces_ == 0;
  return num_pieces_ + 2 * kMostFrames <= kMostPieces &&
         copies_used() + (kMostFrames + 1) * kFrameCopyBytes + kFrameCopyBytes * 4 <= copies_.bytes;
}

// Memory of copies is given back in their order, as they are made in the order of the stream.
std::byte* TcpRetained::AddCopy(size_t bytes) {
  if (const size_t left = copies_.bytes - copies_.end % copies_.bytes; left < bytes) copies_.end += left;
  std::byte* const data = copies_.memory.get() + copies_.end % copies_.bytes;
  copies_.end += bytes;
  ANNULUS_CHECK(copies_used() <= copies_.bytes);
  Piece* last = num_pieces_ > 0 ? &PieceAt(num_pieces_ - 1) : nullptr;
  if (last == nullptr || last->lent != nullptr || last->late || last->data + last->bytes != data) {
    ANNULUS_CHECK(num_pieces_ < pieces_.size());
    last = &PieceAt(num_pieces_++);
    *last = {.data = data};
  }
  last->bytes += bytes;
  last->copies_end = copies_.end;
  end_ += bytes;
  return data;
}

std::byte* TcpRetained::AddShort(size_t bytes) { return AddCopy(bytes); }

void TcpRetained::AddLent(Send* send) {
  ANNULUS_CHECK(num_pieces_ < pieces_.size());
  PieceAt(num_pieces_++) = {.data = send->data, .bytes = send->bytes, .lent = send};
  ++lent_;
  lent_bytes_ += send->bytes;
  end_ += send->bytes;
}

bool TcpRetained::AddWritten(const std::byte* header, Send* send) {
  ANNULUS_CHECK(keeps_ && !has_unwritten());
  const bool copies = send->bytes <= kMostCopied;
  std::byte* const to = AddCopy(kFrameHeaderBytes + (copies ? send->bytes : 0));
  std::memcpy(to, header, kFrameHeaderBytes);
  if (!copies) {
    AddLent(send);
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

Send* TcpRetained::DropFirst() {
  Piece& piece = PieceAt(0);
  begin_ += piece.bytes;
  Send* const send = piece.lent;
  if (send != nullptr) {
    --lent_;
    lent_bytes_ -= piece.bytes;
  } else if (piece.late) {
    if (--late_.pieces == 0) late_.used = 0;
  } else {
    copies_.begin = piece.copies_end;
  }
  first_ = (first_ + 1) % pieces_.size();
  // From the beginning again, where the memory is most likely in the cache.
  if (--num_pieces_ == 0) copies_.begin = copies_.end = 0;
  return send;
}

void TcpRetained::ShortenFirst(size_t by) {
  Piece& piece = PieceAt(0);
  piece.data += by;
  piece.bytes -= by;
  begin_ += by;
  if (piece.lent != nullptr) {
    lent_bytes_ -= by;
  } else if (!piece.late) {
    copies_.begin = piece.copies_end - piece.bytes;
  }
}

void TcpRetained::CopyLate(Piece* piece) {
  ANNULUS_CHECK(late_.used + piece->bytes <= late_.bytes);
  std::byte* const to = late_.memory.get() + late_.used;
  std::memcpy(to, piece->data, piece->bytes);
  late_.used += piece->bytes;
  ++late_.pieces;
  --lent_;
  lent_bytes_ -= piece->bytes;
  *piece = {.data = to, .bytes = piece->bytes, .late = true};
}

}  // namespace annulus
