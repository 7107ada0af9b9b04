// Setting up shared memory links while Linux passes no file, because the user's processes have passed as many as they
// may (ulimit -n) that nobody has received. Root is exempt by two capabilities, so each case is a process without them.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "base/clock.h"
#include "tests/transport/shm/shm_meeting.h"
#include "transport/file_message.h"

namespace annulus {
namespace {

constexpr char kKey[] = "a key of the shared memory tests";
constexpr rlim_t kLimit = 64;

// Files on the way through a pair of sockets: as many as Linux permits.
class FilesInFlight {
 public:
  FilesInFlight() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
    rlimit limit{};
    const bool bounded = syscall(SYS_capset, &header, none) == 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0;
    limit.rlim_cur = kLimit;
    if (!bounded || setrlimit(RLIMIT_NOFILE, &limit) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, ends_) != 0) exit(9);
    while (count_ <= 2 * kLimit && SendWithFile(ends_[0], "x", 1, STDIN_FILENO) == 1) ++count_;
    if (errno != ETOOMANYREFS || count_ == 0) exit(8);
  }
  void Drain() {
    for (; count_ > 0; --count_) {
      char byte;
      int fd = -1;
      bool lost = false;
      if (ReceiveWithFile(ends_[1], &byte, 1, &fd, &lost) != 1 || fd < 0) exit(7);
      close(fd);
    }
  }

 private:
  int ends_[2] = {-1, -1};
  rlim_t count_ = 0;
};

// Whether this process holds the memory file of a link, which it has not passed yet.
bool HoldsMemoryFile() {
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ended;
    if (std::filesystem::read_symlink(each, ended).string().starts_with("/memfd:annulus")) return true;
  }
  return false;
}

int Fail(const ShmMeeting& meeting) {
  for (const Status& status : meeting.statuses) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

[[noreturn]] void ConnectOnceOthersHaveTakenTheirs() {
  FilesInFlight files;
  std::thread others([&files] {
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while (!HoldsMemoryFile() && Now() < deadline) sched_yield();
    files.Drain();
  });
  ShmMeeting meeting;
  meeting.Run(kKey, kKey, kContractPatience);
  others.join();
  exit(meeting.endpoints[0] != nullptr && meeting.endpoints[1] != nullptr ? 0 : Fail(meeting));
}

[[noreturn]] void ConnectInVain() {
  const FilesInFlight files;
  ShmMeeting meeting;
  meeting.Run(kKey, kKey, 3 * kSecond);
  const Status& own = meeting.statuses[0];
  const bool names_itself = own.code() == Code::kSystem && own.peer() == 0 && own.os_errno() == ETOOMANYREFS;
  const bool names_limit = own.message().find("ulimit -n, which is 64") != std::string::npos;
  exit(names_itself && names_limit && meeting.statuses[1].peer() == 0 ? 0 : Fail(meeting));
}

TEST(ShmInFlight, AFileIsPassedOnceOthersAreReceived) {
  EXPECT_EXIT(ConnectOnceOthersHaveTakenTheirs(), testing::ExitedWithCode(0), "");
}

TEST(ShmInFlight, ARankThatMayPassNoFileNamesItselfAndTheLimit) {
  EXPECT_EXIT(ConnectInVain(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace annulus
