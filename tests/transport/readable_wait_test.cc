// A wait that is asked for after every wake of the reactor is still one wait.
#include "transport/readable_wait.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>

namespace annulus {
namespace {

class ReadableWaitTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 2; ++i) {
      int fds[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
      sockets_[i].assign(StreamProtocol(AF_UNIX, 0), fds[0]);
      peers_[i] = fds[1];
    }
  }
  void TearDown() override {
    for (const int fd : peers_) close(fd);
  }
  // Number of handlers that were due.
  size_t Handled() {
    context_.restart();
    return context_.poll();
  }
  void Write(int i) { ASSERT_EQ(send(peers_[i], "x", 1, 0), 1); }
  void Read(int i) {
    char byte;
    ASSERT_EQ(recv(sockets_[i].native_handle(), &byte, 1, 0), 1);
  }

  asio::io_context context_;
  StreamSocket sockets_[2] = {StreamSocket(context_), StreamSocket(context_)};
  int peers_[2] = {-1, -1};
  ReadableWait wait_;
};

TEST_F(ReadableWaitTest, AskingOftenIsOneWait) {
  for (int i = 0; i < 5; ++i) wait_.For(&sockets_[0]);
  EXPECT_EQ(Handled(), 0u);
  Write(0);
  EXPECT_EQ(Handled(), 1u);
  Read(0);
  for (int i = 0; i < 5; ++i) wait_.For(&sockets_[0]);
  EXPECT_EQ(Handled(), 0u);
  Write(0);
  EXPECT_EQ(Handled(), 1u);
}

// What made the first socket readable may be gone before the reactor looks.
TEST_F(ReadableWaitTest, AnotherSocketIsWaitedForAtOnce) {
  wait_.For(&sockets_[0]);
  Write(0);
  Read(0);
  wait_.For(&sockets_[1]);
  Write(1);
  EXPECT_GE(Handled(), 1u);
}

}  // namespace
}  // namespace annulus
