// BoardClaim: a rank's hold on the board that annulus-run --watch made for it.
//
// A wrong or broken descriptor does not harm the rank: it then has no board.
//
// Threads: one at a time.
#pragma once

#include <memory>

#include "collectives/observe/board.h"

namespace annulus {

class BoardClaim {
 public:
  // `handed_down` is the value of ANNULUS_WATCH, null or empty when it is not set. Returns null when there is no such
  // board, or when another communicator of this process or another living process has it.
  static std::unique_ptr<BoardClaim> Acquire(const char* handed_down, int rank, int nranks);

  ~BoardClaim();
  BoardClaim(const BoardClaim&) = delete;
  BoardClaim& operator=(const BoardClaim&) = delete;

  Board* board() const { return board_; }

 private:
  BoardClaim(void* page, size_t bytes, Board* board) : page_(page), bytes_(bytes), board_(board) {}

  void* const page_;
  const size_t bytes_;
  Board* const board_;
};

}  // namespace annulus
