// PieceWork: work on a range of bytes that is done in pieces, one after the other.
//
// Threads: one at a time.
#pragma once

#include <cstddef>

#include "collectives/reduce/domain_queue.h"

namespace annulus {

class PieceWork {
 public:
  void Reset(size_t bytes) {
    bytes_ = bytes;
    submitted_ = 0;
    piece_ = Submission();
  }

  bool done() const { return submitted_ == bytes_ && !piece_.pending(); }

  // Continues as far as the memory's domains allow. submit(begin, &end, &piece) submits the bytes from `begin` on as
  // `piece`, at most up to `end`, and sets `end` to where they stop. Sets *moved when something changed.
  template <class Submit>
  Status Advance(Submit submit, bool* moved) {
    for (;;) {
      if (piece_.pending()) {
        ANNULUS_RETURN_IF_ERROR(piece_.Poll());
        if (piece_.pending()) return Status();
        *moved = true;
      }
      if (submitted_ == bytes_) return Status();
      size_t end = bytes_;
      Status submitted = submit(submitted_, &end, &piece_);
      if (submitted.would_block()) return Status();
      ANNULUS_RETURN_IF_ERROR(std::move(submitted));
      submitted_ = end;
      *moved = true;
    }
  }

 private:
  size_t bytes_ = 0;
  size_t submitted_ = 0;
  Submission piece_;
};

}  // namespace annulus
