// Secret: whatever happens to it, what it held is overwritten.
#include "base/secret.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace annulus {
namespace {

constexpr const char* kShort = "short";  // Lies in the object itself, where the test can look.

// Memory for a Secret that outlives it.
struct Place {
  alignas(Secret) std::byte bytes[sizeof(Secret)] = {};
  bool Holds(const char* text) const {
    const auto* const begin = reinterpret_cast<const char*>(bytes);
    return std::search(begin, begin + sizeof bytes, text, text + std::strlen(text)) != begin + sizeof bytes;
  }
};

TEST(SecretTest, IsOverwrittenAtItsEnd) {
  Place place;
  auto* const secret = new (place.bytes) Secret(kShort);
  EXPECT_EQ(secret->text(), kShort);
  EXPECT_TRUE(place.Holds(kShort));
  secret->~Secret();
  EXPECT_FALSE(place.Holds(kShort));
}

TEST(SecretTest, LeavesNothingWhereItWasMovedFromOrAssignedTo) {
  Place place;
  auto* const secret = new (place.bytes) Secret(kShort);
  Secret taken(std::move(*secret));
  EXPECT_EQ(taken.text(), kShort);
  EXPECT_TRUE(secret->empty());
  secret->~Secret();
  EXPECT_FALSE(place.Holds(kShort)) << "moved from";
  auto* const changed = new (place.bytes) Secret(kShort);
  *changed = Secret("other");
  EXPECT_EQ(changed->text(), "other");
  changed->~Secret();
  EXPECT_FALSE(place.Holds(kShort)) << "assigned to";
  EXPECT_FALSE(place.Holds("other"));
  const Secret& copied = taken;
  EXPECT_EQ(Secret(copied).text(), kShort);
  EXPECT_EQ((copied + "more").text(), std::string(kShort) + "more");
}

}  // namespace
}  // namespace annulus
