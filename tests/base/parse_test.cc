// Addresses as text: what is taken, and what is refused.
#include "base/parse.h"

#include <gtest/gtest.h>

#include <string>

namespace annulus {
namespace {

TEST(ParseAddress, TakesNamesAndBothFamilies) {
  std::string host;
  int port;
  ASSERT_TRUE(ParseAddress("node-1.example:4000", &host, &port));
  EXPECT_EQ(host, "node-1.example");
  EXPECT_EQ(port, 4000);
  ASSERT_TRUE(ParseAddress("[fe80::1%eth0]:65535", &host, &port));
  EXPECT_EQ(host, "fe80::1%eth0");
  EXPECT_EQ(port, 65'535);
  EXPECT_EQ(FormatAddress("fe80::1%eth0", 1), "[fe80::1%eth0]:1");
  EXPECT_EQ(FormatAddress("10.0.0.1", 1), "10.0.0.1:1");
}

TEST(ParseAddress, RefusesEverythingElse) {
  std::string host = "unchanged";
  int port = 7;
  for (const char* wrong : {"", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:1x", "::1:4000", "[]:1",
                            "[::1]", "[::1:1", "a b:1", "http://h:1", "h:1:2"}) {
    EXPECT_FALSE(ParseAddress(wrong, &host, &port)) << wrong;
  }
  EXPECT_EQ(host, "unchanged");
  EXPECT_EQ(port, 7);
}

}  // namespace
}  // namespace annulus
