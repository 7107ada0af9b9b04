// BoardClaim: what annulus-run --watch hands down is used only when it is what it should be. And what it shows.
#include "collectives/observe/board_claim.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <string>

#include "collectives/core/collective.h"
#include "collectives/observe/monitor.h"

namespace annulus {
namespace {

// A page as annulus-run makes it, or a wrong one.
class Page {
 public:
  explicit Page(int boards, int seals = F_SEAL_SHRINK, size_t bytes = 0) {
    bytes_ = bytes > 0 ? bytes : BoardPageBytes(boards);
    fd_ = memfd_create("boards", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(bytes_)), 0);
    EXPECT_EQ(fcntl(fd_, F_ADD_SEALS, seals), 0);
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    EXPECT_NE(memory_, MAP_FAILED);
    head_ = ::new (memory_) BoardPage();
  }
  ~Page() {
    munmap(memory_, bytes_);
    close(fd_);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  BoardPage* head() { return head_; }
  Board* board(int index) { return static_cast<Board*>(memory_) + 1 + index; }
  std::string HandedDown(int index) const { return std::to_string(fd_) + ":" + std::to_string(index); }
  std::unique_ptr<BoardClaim> Acquire(int index) const { return BoardClaim::Acquire(HandedDown(index).c_str(), 1, 4); }

 private:
  size_t bytes_ = 0;
  int fd_ = -1;
  void* memory_ = nullptr;
  BoardPage* head_ = nullptr;
};

TEST(BoardClaim, TakesTheBoardAndGivesItBack) {
  Page page(2);
  {
    const auto claim = page.Acquire(1);
    ASSERT_NE(claim, nullptr);
    EXPECT_EQ(page.board(1)->owner, static_cast<uint64_t>(getpid()));
    EXPECT_EQ(page.board(1)->rank.Get(), 1u);
    EXPECT_EQ(page.board(1)->nranks.Get(), 4u);
    claim->board()->sequence.Set(7);
    EXPECT_EQ(page.board(1)->sequence.Get(), 7u);
    EXPECT_EQ(page.Acquire(1), nullptr) << "the second communicator of a process has none";
    EXPECT_NE(page.Acquire(0), nullptr);
  }
  EXPECT_EQ(page.board(1)->owner, 0u);
  EXPECT_EQ(page.board(1)->sequence.Get(), 0u);
  EXPECT_NE(page.Acquire(1), nullptr);
}

TEST(BoardClaim, ADeadProcessKeepsNothing) {
  Page page(1);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  page.board(0)->owner = static_cast<uint64_t>(child);
  EXPECT_NE(page.Acquire(0), nullptr);
  page.board(0)->owner = static_cast<uint64_t>(getppid());
  EXPECT_EQ(page.Acquire(0), nullptr);
}

TEST(BoardClaim, WhatIsNoPageIsLeftAlone) {
  for (const char* text : {"", ":", "3", "x:0", "0:x", "-1:0", "0:-1", "99999999999999999999:0", "900000:0"}) {
    EXPECT_EQ(BoardClaim::Acquire(text, 0, 1), nullptr) << text;
  }
  EXPECT_EQ(BoardClaim::Acquire(nullptr, 0, 1), nullptr);
  const int file = open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(BoardClaim::Acquire((std::to_string(file) + ":0").c_str(), 0, 1), nullptr);
  close(file);
  EXPECT_EQ(Page(1, F_SEAL_GROW).Acquire(0), nullptr) << "memory that may shrink under us";
  EXPECT_EQ(Page(1, F_SEAL_SHRINK, 8).Acquire(0), nullptr) << "too small for a head";
  EXPECT_EQ(Page(3).Acquire(3), nullptr) << "a board beyond the end";
  EXPECT_EQ(Page(3, F_SEAL_SHRINK, BoardPageBytes(3) - 1).Acquire(2), nullptr) << "the last board is cut off";
  Page other(1);
  other.head()->magic ^= 1;
  EXPECT_EQ(other.Acquire(0), nullptr);
  Page larger(1);
  larger.head()->board_bytes += 64;
  EXPECT_EQ(larger.Acquire(0), nullptr);
}

// Its peers wait for it, and it is the one that is looked for.
TEST(Board, ShowsWhatARankMovesThatNeverWaits) {
  Board board;
  Monitor monitor(2);
  monitor.set_board(&board);
  for (uint64_t number = 1; number <= 32; ++number) {
    monitor.Sent(1, 100);
    Call call;
    call.sequence = number;
    monitor.CountDrive(call, 1000);
  }
  EXPECT_EQ(board.sequence.Get(), 32u);
  EXPECT_EQ(board.moved_bytes.Get(), 3200u);
}

// Its peers would seem to wait for a rank that has called no collective yet.
TEST(Board, MessagesThatMoveAtOnceLeaveTheLatestCollective) {
  Board board;
  Monitor monitor(2);
  monitor.set_board(&board);
  Call call;
  call.kind = CollectiveKind::kAllgather;
  call.sequence = 100;
  call.count = 1024;
  monitor.CountDrive(call, 1000);
  for (int messages = 0; messages < 32; ++messages) {
    monitor.Sent(1, 100);
    monitor.CountMessagesDrive(1000);
  }
  EXPECT_EQ(board.sequence.Get(), 100u);
  EXPECT_EQ(board.kind.Get(), static_cast<uint64_t>(CollectiveKind::kAllgather));
  EXPECT_EQ(board.count.Get(), 1024u);
  EXPECT_EQ(board.moved_bytes.Get(), 3200u);
}

}  // namespace
}  // namespace annulus
