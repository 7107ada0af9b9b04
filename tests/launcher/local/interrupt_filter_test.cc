// How many requests the signals are that reach annulus-run.
#include "launcher/local/interrupt_filter.h"

#include <gtest/gtest.h>

#include <csignal>

namespace annulus {
namespace {

constexpr auto kDirect = InterruptFilter::Way::kDirect;
constexpr auto kForwarded = InterruptFilter::Way::kForwarded;
constexpr auto kTerminal = InterruptFilter::Way::kTerminal;
constexpr Nanoseconds kBegin = 100 * kSecond;

// Whether a signal is a new request, `after` the first one.
class InterruptFilterTest : public testing::Test {
 protected:
  bool IsNew(int signal, InterruptFilter::Way way, Nanoseconds after) {
    return filter_.IsNew(signal, way, kBegin + after);
  }

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

TEST_F(InterruptFilterTest, ThatToTheGroupMayComeThroughALateGuardianToo) {
  EXPECT_TRUE(IsNew(SIGTERM, kForwarded, 0));
  EXPECT_FALSE(IsNew(SIGTERM, kDirect, kMillisecond));
  EXPECT_FALSE(IsNew(SIGTERM, kForwarded, 500 * kMillisecond));
  EXPECT_TRUE(IsNew(SIGTERM, kForwarded, 600 * kMillisecond));
}

TEST_F(InterruptFilterTest, EachKeyOfTheTerminalIsARequest) {
  EXPECT_TRUE(IsNew(SIGINT, kTerminal, 0));
  EXPECT_TRUE(IsNew(SIGINT, kTerminal, 300 * kMillisecond));
  EXPECT_TRUE(IsNew(SIGINT, kTerminal, 600 * kMillisecond));
}

TEST_F(InterruptFilterTest, AKeyIsNoSecondWayOfASignal) {
  EXPECT_TRUE(IsNew(SIGINT, kForwarded, 0));
  EXPECT_TRUE(IsNew(SIGINT, kTerminal, 500 * kMillisecond));
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
