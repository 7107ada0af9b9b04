#include "launcher/watch/watch_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <new>

#include "base/file_limit.h"

namespace annulus {
namespace {

// Longer than any rank can have waited, and far from overflow.
constexpr uint64_t kMostWaited = uint64_t{1} << 62;

// Whether the process is stopped, by a signal or a debugger. False when that is unknown.
bool IsStopped(uint64_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // A name may contain anything.
  return name_end != std::string::npos && name_end + 2 < text.size() &&
         (text[name_end + 2] == 'T' || text[name_end + 2] == 't');
}

}  // namespace

WatchPage::~WatchPage() {
  if (memory_ != nullptr) munmap(memory_, BoardPageBytes(count_));
  if (fd_ >= 0) close(fd_);
}

Status WatchPage::Make(int boards) {
  const size_t bytes = BoardPageBytes(boards);
  const FileLimitGuard guard;
  fd_ = memfd_create("annulus-watch", MFD_ALLOW_SEALING);
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int error = errno;
    return Status::System("cannot make memory for --watch" + FileLimitText(error), error);
  }
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED) return Status::System("cannot map memory for --watch", errno);
  memory_ = memory;
  count_ = boards;
  BoardPage head;
  head.boards = static_cast<uint64_t>(boards);
  ::new (memory_) BoardPage(head);
  for (int i = 0; i < boards; ++i) ::new (static_cast<Board*>(memory_) + 1 + i) Board();
  return Status();
}

std::string WatchPage::VariableOf(int board) const {
  return "ANNULUS_WATCH=" + std::to_string(fd_) + ":" + std::to_string(board);
}

std::vector<RankView> WatchPage::Read(Nanoseconds now) const {
  std::vector<RankView> views(count_);
  for (int i = 0; i < count_; ++i) {
    const Board& board = *(static_cast<const Board*>(memory_) + 1 + i);
    RankView& view = views[i];
    const uint64_t owner = board.owner.load(std::memory_order_acquire);
    view.joined = owner != 0;
    if (!view.joined) continue;
    view.stopped = IsStopped(owner);
    view.failed = board.failed.Get() != 0;
    view.inside = board.inside.Get();
    view.sequence = board.sequence.Get();
    view.kind = board.kind.Get();
    view.count = board.count.Get();
    view.moved_bytes = board.moved_bytes.Get();
    view.waited = static_cast<Nanoseconds>(std::min(board.waited_ns.Get(), kMostWaited));
    const Nanoseconds since = static_cast<Nanoseconds>(board.waiting_since.Get());
    if (since > 0 && since < now) view.waits = now - since;
    view.waited += view.waits;
    // Whatever value a rank wrote, the result is a valid rank or none.
    const uint64_t awaited = board.waiting_for.Get();
    view.waiting_for = awaited <= static_cast<uint64_t>(count_) ? static_cast<int>(awaited) - 1 : -1;
  }
  return views;
}

}  // namespace annulus
