// Who descends from this process, while processes come and go.
#include "launcher/local/process_tree.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace annulus {
namespace {

TEST(ProcessTree, FindsAChildAndNotADeadOne) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    pause();
    _exit(0);
  }
  const auto has_child = [child] {
    const std::vector<pid_t> found = Descendants();
    return std::count(found.begin(), found.end(), child) == 1;
  };
  EXPECT_TRUE(has_child());
  ASSERT_EQ(kill(child, SIGKILL), 0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(has_child()) << "a zombie is no living descendant";
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

// A process may end between the opening and the reading of what the kernel says of it.
TEST(ProcessTree, ProcessesMayEndMeanwhile) {
  std::atomic<bool> stop{false};
  std::atomic<int> looks{0};
  std::thread looker([&] {
    while (!stop.load()) {
      Descendants();
      ++looks;
    }
  });
  for (const Nanoseconds end = Now() + kSecond; Now() < end;) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    if (child > 0) waitpid(child, nullptr, 0);
  }
  stop = true;
  looker.join();
  EXPECT_GT(looks.load(), 0);
}

}  // namespace
}  // namespace annulus
