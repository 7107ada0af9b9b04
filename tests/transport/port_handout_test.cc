// The socket that reserves the rendezvous, and its way from the launcher to rank 0.
#include "transport/port_handout.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <string>
#include <thread>

#include "tests/base/descriptor_limit.h"
#include "transport/reserved_port.h"

namespace annulus {
namespace {

constexpr uid_t kNobody = 65534;

std::string NameOf(const PortHandout& handout) { return handout.variable().substr(handout.variable().find('=') + 1); }

int PortOfSocket(int fd) {
  sockaddr_in address{};
  socklen_t bytes = sizeof address;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0 ? ntohs(address.sin_port) : -1;
}

class PortHandoutTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(reserved_.Reserve("127.0.0.1").ok());
    ASSERT_TRUE(handout_.Open(reserved_.listener()).ok());
  }

  // What FetchPort returns while the handout serves.
  int Fetch() {
    int fetched = -1;
    std::jthread rank([&] { fetched = FetchPort(NameOf(handout_), DeadlineAfter(60 * kSecond)); });
    ServeOnce();
    rank.join();
    return fetched;
  }
  void ServeOnce() {
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(handout_.fd(), &readable);
    ASSERT_EQ(select(handout_.fd() + 1, &readable, nullptr, nullptr, nullptr), 1);
    handout_.Serve();
  }

  ReservedPort reserved_;
  PortHandout handout_;
};

TEST_F(PortHandoutTest, EveryAskerGetsTheListener) {
  for (int i = 0; i < 3; ++i) {
    const int fd = Fetch();
    ASSERT_GE(fd, 0);
    EXPECT_EQ(PortOfSocket(fd), reserved_.port());
    int listens = 0;
    socklen_t bytes = sizeof listens;
    EXPECT_EQ(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes), 0);
    EXPECT_EQ(listens, 1);
    close(fd);
  }
}

TEST_F(PortHandoutTest, WhoeverFindsACrowdWaitsForItsTurn) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = NameOf(handout_);
  std::ranges::copy(name, address.sun_path + 1);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  bool is_full = false;
  while (!is_full) {  // Who has left still counts until it is served.
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    is_full = connect(fd, reinterpret_cast<const sockaddr*>(&address), bytes) != 0;
    ASSERT_TRUE(!is_full || errno == EAGAIN) << errno;
    close(fd);
  }
  const Nanoseconds begin = Now();
  EXPECT_EQ(FetchPort(name, DeadlineAfter(50 * kMillisecond)), -1);
  EXPECT_GE(Now() - begin, 50 * kMillisecond);
  std::atomic<int> fetched{-2};
  std::jthread rank([&] { fetched = FetchPort(name, DeadlineAfter(60 * kSecond)); });
  while (fetched == -2) handout_.Serve();
  EXPECT_GE(fetched, 0);
  close(fetched);
}

TEST_F(PortHandoutTest, WithoutDescriptorsTheLauncherPausesAndServesLater) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer of undefined behaviour needs descriptors to look at memory";
#endif
  std::atomic<int> fetched{-2};
  std::jthread rank([&] { fetched = FetchPort(NameOf(handout_), DeadlineAfter(60 * kSecond)); });
  pollfd asked = {handout_.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&asked, 1, -1), 1);
  std::optional<DescriptorLimit> none(DescriptorLimit::Next());
  const Nanoseconds begin = Now();
  for (int i = 0; i < 10; ++i) handout_.Serve();
  EXPECT_GE(Now() - begin, 50 * kMillisecond);  // A launcher that polls in between does not spin.
  none.reset();
  while (fetched == -2) handout_.Serve();
  EXPECT_GE(fetched, 0);
  close(fetched);
}

TEST_F(PortHandoutTest, OtherUsersGetNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can try another user";
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setuid(kNobody) != 0) _exit(2);
    _exit(FetchPort(NameOf(handout_), DeadlineAfter(60 * kSecond)) < 0 ? 0 : 1);
  }
  int status = 0;
  while (waitpid(stranger, &status, WNOHANG) == 0) handout_.Serve();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) GTEST_SKIP() << "there is no other user in this sandbox";
  EXPECT_EQ(status, 0);
}

TEST_F(PortHandoutTest, NobodyThereIsNotWaitedFor) {
  EXPECT_EQ(FetchPort("no-such-name", kNoDeadline), -1);
  EXPECT_EQ(FetchPort("", kNoDeadline), -1);
  EXPECT_EQ(FetchPort(std::string(200, 'x'), kNoDeadline), -1);
}

// With SO_REUSEADDR the port of a socket that does not listen could be taken, by any user.
TEST_F(PortHandoutTest, NobodyCanListenAtTheReservedPort) {
  for (const int option : {0, SO_REUSEADDR, SO_REUSEPORT}) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    if (option != 0) setsockopt(fd, SOL_SOCKET, option, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(reserved_.port()));
    const bool listens = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(fd, 1) == 0;
    EXPECT_FALSE(listens) << "option " << option;
    EXPECT_EQ(errno, EADDRINUSE);
    close(fd);
  }
}

}  // namespace
}  // namespace annulus
