// The format of the meeting point that rank 0 leaves in a store.
#include "collectives/membership/meeting_point.h"

#include <gtest/gtest.h>

#include <random>
#include <span>
#include <string>

#include "collectives/membership/local_host.h"

namespace annulus {
namespace {

MeetingPoint Drawn() {
  MeetingPoint point;
  point.address = "[fe80::1%eth0]:41234";
  point.key_source = KeySource::kDrawn;
  EXPECT_TRUE(DrawKey(&point.key).ok());
  return point;
}

std::string Encoded(const MeetingPoint& point) {
  const MeetingPointBytes bytes(point);
  return {reinterpret_cast<const char*>(bytes.used().data()), bytes.used().size()};
}

Status Read(const std::string& text, MeetingPoint* point) { return Decode(std::as_bytes(std::span(text)), point); }

TEST(MeetingPointTest, IsReadAsItWasWritten) {
  MeetingPoint given;
  given.address = "10.0.0.1:1";
  given.key_source = KeySource::kGiven;
  MeetingPoint none = given;
  none.key_source = KeySource::kNone;
  for (const MeetingPoint& point : {Drawn(), given, none}) {
    MeetingPoint read;
    ASSERT_TRUE(Read(Encoded(point), &read).ok());
    EXPECT_EQ(read, point);
  }
}

TEST(MeetingPointTest, EveryPartOfOneIsRefused) {
  const std::string whole = Encoded(Drawn());
  MeetingPoint read;
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_EQ(Read(whole.substr(0, bytes), &read).code(), Code::kProtocol) << bytes;
  }
  EXPECT_EQ(Read(whole + "x", &read).code(), Code::kProtocol);
  EXPECT_EQ(read, MeetingPoint());
}

TEST(MeetingPointTest, KeyAndItsSourceFitTogether) {
  MeetingPoint read;
  MeetingPoint keyless = Drawn();
  keyless.key.clear();
  EXPECT_EQ(Read(Encoded(keyless), &read).code(), Code::kProtocol);
  MeetingPoint tells = Drawn();
  tells.key_source = KeySource::kGiven;
  EXPECT_EQ(Read(Encoded(tells), &read).code(), Code::kProtocol);
  MeetingPoint nowhere = Drawn();
  nowhere.address = "10.0.0.1:0";
  EXPECT_EQ(Read(Encoded(nowhere), &read).code(), Code::kProtocol);
}

TEST(MeetingPointTest, AnyBytesAreReadOrRefused) {
  const std::string whole = Encoded(Drawn());
  std::mt19937 random(1);
  for (int round = 0; round < 2'000; ++round) {
    std::string text = whole;
    for (int changes = static_cast<int>(random() % 4); changes >= 0; --changes) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    MeetingPoint read;
    if (Read(text, &read).ok()) {
      EXPECT_EQ(Encoded(read), text);
    }
  }
}

TEST(MeetingPointTest, KeysDiffer) {
  std::string first;
  std::string second;
  ASSERT_TRUE(DrawKey(&first).ok());
  ASSERT_TRUE(DrawKey(&second).ok());
  EXPECT_EQ(first.size(), 64u);
  EXPECT_NE(first, second);
}

TEST(MeetingPointTest, EachStartHasItsKeyInTheStore) {
  EXPECT_EQ(MeetingPointKey({}), "annulus/rendezvous/no run/0");
  EXPECT_EQ(MeetingPointKey({"42", 3}), "annulus/rendezvous/42/3");
}

TEST(OwnHostTest, TheInterfaceNamedGivesTheAddress) {
  std::string host;
  ASSERT_TRUE(FindOwnHost("lo", &host).ok());
  EXPECT_EQ(host, "127.0.0.1");
  ASSERT_TRUE(FindOwnHost("", &host).ok());
  EXPECT_FALSE(host.empty());
  EXPECT_EQ(FindOwnHost("no-such0", &host).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace annulus
