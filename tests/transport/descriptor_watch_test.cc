// DescriptorWatch: a reactor wakes when the descriptor is or becomes readable, and the descriptor stays its owner's.
#include "transport/descriptor_watch.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <thread>

namespace annulus {
namespace {

constexpr Nanoseconds kPatience = 60 * kSecond;

class DescriptorWatchTest : public testing::Test {
 protected:
  DescriptorWatchTest() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { EXPECT_GE(fd_, 0); }
  ~DescriptorWatchTest() override { close(fd_); }

  // Whether the reactor woke before its deadline.
  bool Wakes(Nanoseconds patience) {
    const Deadline deadline = Now() + patience;
    reactor_.WaitUntil(deadline);
    return Now() < deadline;
  }
  bool IsReadable() const {
    eventfd_t value = 0;
    return eventfd_read(fd_, &value) == 0;
  }

  Reactor reactor_;
  const int fd_;
};

TEST_F(DescriptorWatchTest, WhatIsAlreadyReadableWakesAtOnceAndIsEmptied) {
  DescriptorWatch watch(&reactor_, fd_);
  for (int round = 0; round < 3; ++round) {
    eventfd_write(fd_, 5);
    watch.Arm();
    watch.Arm();
    EXPECT_TRUE(Wakes(kPatience)) << "round " << round;
    EXPECT_FALSE(IsReadable());
  }
  watch.Arm();
  EXPECT_FALSE(Wakes(kMillisecond)) << "nothing is new";
}

TEST_F(DescriptorWatchTest, AnEventWakesASleeper) {
  DescriptorWatch watch(&reactor_, fd_);
  for (int round = 0; round < 100; ++round) {
    std::jthread other([this] { eventfd_write(fd_, 1); });
    watch.Arm();
    EXPECT_TRUE(Wakes(kPatience));
  }
}

TEST_F(DescriptorWatchTest, AnArmedWatchMayEndAndLeavesTheDescriptorAlone) {
  auto watch = std::make_unique<DescriptorWatch>(&reactor_, fd_);
  watch->Arm();
  watch.reset();
  eventfd_write(fd_, 1);
  reactor_.WaitUntil(Now() + kMillisecond);
  EXPECT_TRUE(IsReadable());
  DescriptorWatch next(&reactor_, fd_);
  eventfd_write(fd_, 1);
  next.Arm();
  EXPECT_TRUE(Wakes(kPatience));
}

}  // namespace
}  // namespace annulus
