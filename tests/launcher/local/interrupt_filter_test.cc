// How many requests the signals are that reach annulus-run.
#include "launcher/local/interrupt_filter.h"

#include <gtest/gtest.h>

#include <csignal>

namespace annulus {
namespace {

constexpr bool kDirect = false;
constexpr bool kForwarded = true;
constexpr Nanoseconds kBegin = 100 * kSecond;

// Whether a signal is a new request, `after` the first one.
class InterruptFilterTest : public testing::Test {
 protected:
  bool IsNew(int signal, bool forwarded, Nanoseconds after) { return filter_.IsNew(signal, forwarded, kBegin + after); }

  InterruptFilter filter_;
};

TEST_F(InterruptFilterTest, ASignalToTheGroupIsOneRequestHoweverLateTheGuardianIs) {
  EXPECT_TRUE(IsNew(SIGTERM, kDirect, 0));
  EXPECT_FALSE(IsNew(SIGTERM, kForwarded, 900 * kMillisecond));
}

TEST_F(InterruptFilterTest, TheGuardianMayBeFirst) {
  EXPECT_TRUE(IsNew(SIGHUP, kForwarded, 0));
  EXPECT_FALSE(IsNew(SIGHUP, kDirect, 900 * kMillisecond));
}

// The process, then its group: timeout(1).
TEST_F(InterruptFilterTest, SignalsAtOnceAreOneRequest) {
  EXPECT_TRUE(IsNew(SIGTERM, kForwarded, 0));
  EXPECT_FALSE(IsNew(SIGTERM, kForwarded, kMillisecond));
  EXPECT_FALSE(IsNew(SIGTERM, kDirect, 2 * kMillisecond));
}

TEST_F(InterruptFilterTest, AnotherSignalAtOnceIsTheSameRequest) {
  EXPECT_TRUE(IsNew(SIGTERM, kDirect, 0));
  EXPECT_FALSE(IsNew(SIGHUP, kDirect, 10 * kMillisecond));
  EXPECT_TRUE(IsNew(SIGHUP, kDirect, 300 * kMillisecond));
}

TEST_F(InterruptFilterTest, EachKeyOfTheTerminalIsARequest) {
  EXPECT_TRUE(IsNew(SIGINT, kDirect, 0));
  EXPECT_TRUE(IsNew(SIGINT, kDirect, 300 * kMillisecond));
  EXPECT_TRUE(IsNew(SIGINT, kDirect, 600 * kMillisecond));
}

TEST_F(InterruptFilterTest, ASecondSignalToTheGroupIsASecondRequest) {
  EXPECT_TRUE(IsNew(SIGTERM, kDirect, 0));
  EXPECT_FALSE(IsNew(SIGTERM, kForwarded, kMillisecond));
  EXPECT_TRUE(IsNew(SIGTERM, kDirect, 300 * kMillisecond));
  EXPECT_FALSE(IsNew(SIGTERM, kForwarded, 301 * kMillisecond));
}

TEST_F(InterruptFilterTest, TheOtherWayIsForgottenAfterAWhile) {
  EXPECT_TRUE(IsNew(SIGTERM, kDirect, 0));
  EXPECT_TRUE(IsNew(SIGTERM, kForwarded, 2 * kSecond));
}

}  // namespace
}  // namespace annulus
