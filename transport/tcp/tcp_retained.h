// TcpRetained: the bytes of one stream that were sent, and that the peer's kernel has not confirmed. When a connection
// breaks, the stream goes on from here over the next one.
//
// What is small is copied when it is sent. Larger payloads stay where they are: their sends are *lent*, and complete
// once all of them is confirmed, or once the rest of them is copied after all.
//
// The short path's frames begin here: they are written from the copy.
//
// Positions count the bytes of the stream from its beginning. Pieces of memory are kept in their order.
//
// Threads: those of the endpoint. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/tcp/io_list.h"
#include "transport/transport.h"
#include "transport/wire/frame.h"

namespace annulus {

class TcpRetained {
 public:
  // Frames that one write may carry, at most; there is room for them when HasRoom says so.
  static constexpr size_t kMostFrames = IoList::kMost / 2;
  // Largest payload that is copied when it is sent, in bytes: copying it takes less than a tenth of what sending does.
  static constexpr uint32_t kMostCopied = 4096;
  // Room for copies that are made when something is sent, and for copies of what was lent, in bytes.
  static constexpr size_t kCopyBytes = size_t{256} << 10;
  static constexpr size_t kLateCopyBytes = size_t{256} << 10;

  // `keeps`: for resuming; else bytes are dropped once they are written. `most_short`: largest payload of a short
  // frame, in bytes; 0: there are none.
  TcpRetained(bool keeps, uint32_t most_short);

  bool keeps() const { return keeps_; }
  // Memory that it holds, at most.
  size_t bytes() const { return pieces_.size() * sizeof(Piece) + copies_.bytes + late_.bytes; }

  // Positions of the first byte that is kept, of the next one to write, and one past the last.
  uint64_t begin() const { return begin_; }
  uint64_t next() const { return next_; }
  uint64_t end() const { return end_; }

  // Whether there is room for a short frame, or for all frames of one write.
  bool HasRoom() const;
  // Returns room for a frame that is still to be written, which the caller fills. Only when HasRoom().
  std::byte* AddShort(size_t bytes);
  // Keeps a frame that was written just now. Returns whether its send is done, or else lent. Only when HasRoom().
  bool AddWritten(const std::byte* header, Send* send);

  bool has_unwritten() const { return next_ != end_; }
  // Lists what is to be written, up to kMaxWriteBytes or as much as fits.
  void List(IoList* list) const;
  void Wrote(size_t bytes);
  // Writes again from `position` on, which lies in [begin(), end()].
  void WriteAgainFrom(uint64_t position) { next_ = position; }

  // Whether it would help to learn what is confirmed.
  bool wants_confirmation() const { return lent_ > 0 || copies_used() > kCopiesToConfirm; }
  // Drops all bytes before `position`, or all there are. Calls done(send) for each send that is not lent any more.
  template <class Done>
  void Confirm(uint64_t position, Done done);

  bool has_lent() const { return lent_ > 0; }
  // Whether all that is lent fits into the room for late copies.
  bool CanCopyLent() const { return lent_ > 0 && lent_bytes_ <= late_.bytes - late_.used; }
  template <class Done>
  void CopyLent(Done done);
  // Gives up what is lent, for a stream that will not be resumed. Nothing may be written again afterwards.
  template <class Done>
  void ReturnLent(Done done);

 private:
  // More than this many bytes of copies are worth a system call, so that the same few are used again and again.
  static constexpr size_t kCopiesToConfirm = size_t{32} << 10;

  struct Piece {
    const std::byte* data = nullptr;
    size_t bytes = 0;
    size_t copies_end = 0;  // Of a copy: where its memory ends, counted as Copies::end.
    Send* lent = nullptr;   // The send whose memory it is; null: a copy.
    bool late = false;      // A copy in late_.
  };

  Piece& PieceAt(size_t index) { return pieces_[(first_ + index) % pieces_.size()]; }
  const Piece& PieceAt(size_t index) const { return pieces_[(first_ + index) % pieces_.size()]; }
  size_t copies_used() const { return copies_.end - copies_.begin; }
  std::byte* AddCopy(size_t bytes);
  void AddLent(Send* send);
  // Returns the send that is not lent any more, or null.
  Send* DropFirst();
  void ShortenFirst(size_t by);
  void CopyLate(Piece* piece);

  // Memory is not cleared, so that what is never used takes no room.
  struct Copies {  // A ring; positions in it count on.
    explicit Copies(size_t size) : bytes(size), memory(std::make_unique_for_overwrite<std::byte[]>(size)) {}
    const size_t bytes;
    const std::unique_ptr<std::byte[]> memory;
    size_t begin = 0;
    size_t end = 0;
  };
  struct LateCopies {  // Used from its beginning; free again when all of it is.
    explicit LateCopies(size_t size) : bytes(size), memory(std::make_unique_for_overwrite<std::byte[]>(size)) {}
    const size_t bytes;
    const std::unique_ptr<std::byte[]> memory;
    size_t used = 0;
    size_t pieces = 0;
  };

  const bool keeps_;
  Copies copies_;
  LateCopies late_;
  std::vector<Piece> pieces_;  // A ring that starts at first_.
  size_t first_ = 0;
  size_t num_pieces_ = 0;
  size_t lent_ = 0;
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
void TcpRetained::CopyLent(Done done) {
  for (size_t i = 0; i < num_pieces_ && lent_ > 0; ++i) {
    Piece& piece = PieceAt(i);
    if (piece.lent == nullptr) continue;
    Send* const send = piece.lent;
    CopyLate(&piece);
    done(send);
  }
}

template <class Done>
void TcpRetained::ReturnLent(Done done) {
  for (size_t i = 0; i < num_pieces_ && lent_ > 0; ++i) {
    Piece& piece = PieceAt(i);
    if (piece.lent == nullptr) continue;
    --lent_;
    done(std::exchange(piece.lent, nullptr));
  }
  lent_bytes_ = 0;
}

}  // namespace annulus
