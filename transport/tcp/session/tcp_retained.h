// TcpRetained: the bytes of one stream that were sent, and that the peer's kernel has not confirmed. When a connection
// breaks, the stream goes on from here over the next one.
//
// Small payloads are copied when they are sent. Larger ones stay in the sender's memory: their sends are *lent*, and
// complete once the peer's kernel has confirmed all of their bytes, or once the rest of them has been copied after all.
//
// Frames of the short path are written straight from this copy.
//
// Positions count the bytes of the stream from its beginning. Pieces of memory are kept in their order.
//
// Threads: those of the endpoint. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "transport/tcp/session/copy_ring.h"
#include "transport/tcp/socket/io_list.h"
#include "transport/transport.h"
#include "transport/wire/frame.h"

namespace annulus {

class TcpRetained {
 public:
  // Largest payload that is copied when it is sent, in bytes: copying it takes less than a tenth of what sending does.
  static constexpr uint32_t kMostCopied = 4096;

  // Memory for copies, in bytes.
  struct Room {
    size_t at_once = 0;  // Bytes of what is copied when it is sent.
    size_t late = 0;     // Bytes of what was lent before.
  };
  // For one of `lanes` lanes of a link with such slots; `most_short` as below. The late copies of all lanes together
  // take as much as the slots of one direction: so much more than what is lent can be under way on a long path.
  static Room RoomFor(size_t slot_bytes, int slots, int lanes, uint32_t most_short);
  // Memory that a TcpRetained with that room holds beside itself.
  static size_t MemoryBytes(const Room& room) { return kMostPieces * sizeof(Piece) + room.at_once + room.late; }

  // Keeps nothing for resuming: bytes are dropped once they are written. `most_short`: largest payload of a short
  // frame, in bytes; 0: there are none.
  explicit TcpRetained(uint32_t most_short);
  explicit TcpRetained(const Room& room);

  bool keeps() const { return keeps_; }
  // Memory that it holds beside itself.
  size_t bytes() const { return pieces_.size() * sizeof(Piece) + at_once_.bytes() + late_.bytes(); }

  // Positions of the first byte that is kept, of the next one to write, and one past the last.
  uint64_t begin() const { return begin_; }
  uint64_t next() const { return next_; }
  uint64_t end() const { return end_; }

  // Whether there is room for that many frames of sends.
  bool HasRoom(size_t frames) const;
  // The same for a short frame of that size, with its header.
  bool HasRoomForShort(size_t bytes) const;
  // Returns room for a frame that is still to be written, which the caller fills. Only when HasRoomForShort(bytes).
  std::byte* AddShort(size_t bytes) { return AddCopy(bytes); }
  // Keeps a frame that was written just now. Returns whether its send is done, or else lent. Only when HasRoom(1).
  bool AddWritten(const std::byte* header, Send* send);

  bool has_unwritten() const { return next_ != end_; }
  // Lists what is to be written, or as much of it as fits.
  void List(IoList* list) const;
  void Wrote(size_t bytes);
  // Writes again from `position` on, which lies in [begin(), end()].
  void WriteAgainFrom(uint64_t position) { next_ = position; }

  // Whether it would help to learn what is confirmed.
  bool wants_confirmation() const {
    return has_lent() || at_once_.used() > to_confirm_ || num_pieces_ > kPiecesToConfirm;
  }
  // Drops all bytes before `position`, or all there are. Calls done(send) for each send that is not lent any more.
  template <class Done>
  void Confirm(uint64_t position, Done done);

  bool has_lent() const { return first_lent_ < num_pieces_; }
  size_t lent_bytes() const { return lent_bytes_; }
  // Whether there is room for a late copy of what was lent first.
  bool CanCopyLent() const { return has_lent() && late_.Fits(PieceAt(first_lent_).bytes); }
  // Copies that, and returns its send, which is not lent any more. Only when CanCopyLent().
  Send* CopyLent();
  // Gives up what is lent, for a stream that will not be resumed. Nothing may be written again afterwards.
  template <class Done>
  void ReturnLent(Done done);

 private:
  // Pieces in use at once.
  static constexpr size_t kMostPieces = 4 * IoList::kMost;
  static constexpr size_t kPiecesToConfirm = IoList::kMost;

  struct Piece {
    const std::byte* data = nullptr;
    size_t bytes = 0;
    Send* lent = nullptr;      // The send whose memory it is; null: a copy.
    CopyRing* ring = nullptr;  // The ring that holds a copy.
    size_t ring_end = 0;       // Where its memory ends there.
  };

  TcpRetained(bool keeps, const Room& room, size_t pieces);
  // Where that piece is; index <= number of pieces. A division would take longer than the copy of a small frame.
  size_t SlotOf(size_t index) const {
    const size_t slot = first_ + index;
    return slot < pieces_.size() ? slot : slot - pieces_.size();
  }
  Piece& PieceAt(size_t index) { return pieces_[SlotOf(index)]; }
  const Piece& PieceAt(size_t index) const { return pieces_[SlotOf(index)]; }
  std::byte* AddCopy(size_t bytes);
  Piece* AddPiece();
  void FindLent();
  // Returns the send that is not lent any more, or null.
  Send* DropFirst();
  void ShortenFirst(size_t by);
  void DropLent(size_t bytes) { lent_bytes_ -= bytes; }

  const bool keeps_;
  CopyRing at_once_;
  CopyRing late_;
  const size_t to_confirm_;    // More than this many bytes of copies are worth a system call.
  std::vector<Piece> pieces_;  // A ring that starts at first_.
  size_t first_ = 0;
  size_t num_pieces_ = 0;
  size_t first_lent_ = 0;  // Counted from first_; num_pieces_: none is lent.
  size_t lent_bytes_ = 0;
  uint64_t begin_ = 0;
  uint64_t next_ = 0;
  uint64_t end_ = 0;
};

template <class Done>
void TcpRetained::Confirm(uint64_t position, Done done) {
  while (num_pieces_ > 0 && begin_ + PieceAt(0).bytes <= position) {
    if (Send* const send = DropFirst(); send != nullptr) done(send);
  }
  if (num_pieces_ > 0 && position > begin_) ShortenFirst(position - begin_);
}

template <class Done>
void TcpRetained::ReturnLent(Done done) {
  for (; has_lent(); FindLent()) done(std::exchange(PieceAt(first_lent_).lent, nullptr));
  lent_bytes_ = 0;
}

}  // namespace annulus
