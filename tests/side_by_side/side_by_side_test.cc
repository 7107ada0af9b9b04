// side_by_side_main itself: tests that wait for each other both pass, and one that fails is not overlooked
// (failing_test.sh).
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/clock.h"

namespace annulus {
namespace {

// Each writes a file beside its own folder, and waits for the other's.
void Meet(const std::string& own, const std::string& other) {
  const std::string folder = std::string(std::getenv("TEST_TMPDIR")) + "/../";
  std::ofstream(folder + own) << "here";
  for (const Nanoseconds end = Now() + 30 * kSecond; access((folder + other).c_str(), F_OK) != 0;) {
    ASSERT_LT(Now(), end) << other << " did not come";
    poll(nullptr, 0, 10);
  }
}

TEST(MeetingTest, OneWaitsForTheOther) { Meet("one", "other"); }
TEST(MeetingTest, TheOtherWaitsForOne) { Meet("other", "one"); }

class ParameterTest : public testing::TestWithParam<const char*> {};
TEST_P(ParameterTest, FailsWhereItIsAskedTo) {
  const char* const mishap = std::getenv("MISHAP");
  if (mishap == nullptr || GetParam() != std::string(mishap)) return;
  if (GetParam() == std::string("abort")) std::abort();
  if (GetParam() == std::string("hang")) {
    std::ofstream(std::string(std::getenv("TEST_TMPDIR")) + "/../hangs") << "here";
    poll(nullptr, 0, 60'000);
  }
  ADD_FAILURE() << "as it was asked to";
}
INSTANTIATE_TEST_SUITE_P(Mishaps, ParameterTest, testing::Values("failure", "abort", "hang"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace annulus
