#include "collectives/observe/board_claim.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/parse.h"

namespace annulus {
namespace {

// "DESCRIPTOR:BOARD".
bool Parse(const std::string& text, int* fd, uint64_t* board) {
  const size_t colon = text.find(':');
  int64_t first = 0;
  int64_t second = 0;
  if (colon == std::string::npos || !ParseNumber(text.substr(0, colon), &first)) return false;
  if (!ParseNumber(text.substr(colon + 1), &second)) return false;
  if (first < 0 || first > 1 << 20 || second < 0 || second > 1 << 20) return false;
  *fd = static_cast<int>(first);
  *board = static_cast<uint64_t>(second);
  return true;
}

// The descriptor may refer to anything: only memory that can never shrink is accessed.
void* Map(int fd, size_t* bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat status;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &status) != 0) return nullptr;
  *bytes = static_cast<size_t>(status.st_size);
  if (*bytes < sizeof(Board)) return nullptr;
  void* const page = mmap(nullptr, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return page == MAP_FAILED ? nullptr : page;
}

bool Claim(Board* board) {
  const uint64_t self = static_cast<uint64_t>(getpid());
  uint64_t owner = board->owner.load(std::memory_order_acquire);
  // A process that ended without releasing the board does not block the next one.
  const bool gone = owner != 0 && owner != self && kill(static_cast<pid_t>(owner), 0) != 0 && errno == ESRCH;
  return (owner == 0 || gone) && board->owner.compare_exchange_strong(owner, self, std::memory_order_acq_rel);
}

void Clear(Board* board) {
  for (Counter* counter : {&board->sequence, &board->kind, &board->count, &board->inside, &board->failed,
                           &board->waiting_since, &board->waiting_for, &board->waited_ns, &board->moved_bytes}) {
    counter->Set(0);
  }
}

}  // namespace

std::unique_ptr<BoardClaim> BoardClaim::Acquire(const char* handed_down, int rank, int nranks) {
  int fd = -1;
  uint64_t index = 0;
  if (handed_down == nullptr || !Parse(handed_down, &fd, &index)) return nullptr;
  size_t bytes = 0;
  void* const page = Map(fd, &bytes);
  if (page == nullptr) return nullptr;
  const BoardPage& head = *static_cast<const BoardPage*>(page);
  Board* const board = static_cast<Board*>(page) + 1 + index;
  const bool known = head.magic == BoardPage::kMagic && head.board_bytes == sizeof(Board);
  if (!known || (index + 2) * sizeof(Board) > bytes || !Claim(board)) {
    munmap(page, bytes);
    return nullptr;
  }
  Clear(board);
  board->rank.Set(static_cast<uint64_t>(rank));
  board->nranks.Set(static_cast<uint64_t>(nranks));
  return std::unique_ptr<BoardClaim>(new BoardClaim(page, bytes, board));
}

BoardClaim::~BoardClaim() {
  Clear(board_);
  board_->owner.store(0, std::memory_order_release);
  munmap(page_, bytes_);
}

}  // namespace annulus
