// The encoding of verdicts: what is written is read back, and nothing else is believed.
#include "collectives/control/verdict.h"

#include <gtest/gtest.h>

#include <span>

#include "collectives/control/arbiter_text.h"

namespace annulus {
namespace {

Verdict Example() {
  Verdict verdict = BrokenMessageVerdict(3, std::string(5000, 'x'));
  verdict.call.sequence = uint64_t{1} << 60;
  verdict.call.kind = CollectiveKind::kBroadcast;
  verdict.call.root = 2;
  verdict.call.count = uint64_t{1} << 33;
  verdict.os_errno = 104;
  return verdict;
}

TEST(VerdictWire, SurvivesTheWireAndCutsLongTexts) {
  Verdict verdict = Example();
  ByteWriter out;
  WriteVerdict(verdict, &out);
  ByteReader in(std::as_bytes(std::span(out.bytes())));
  Verdict read;
  ASSERT_TRUE(ReadVerdict(&in, &read));
  EXPECT_TRUE(in.done());
  verdict.message.resize(kMessageTextBytes);
  EXPECT_EQ(read, verdict);
}

TEST(VerdictWire, TruncatedOrImpossibleIsRefused) {
  ByteWriter out;
  WriteVerdict(Example(), &out);
  const auto bytes = std::as_bytes(std::span(out.bytes()));
  Verdict read;
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    ByteReader in(bytes.first(cut));
    EXPECT_FALSE(ReadVerdict(&in, &read)) << cut;
  }
  for (const size_t place : {0, 20, 21, 22}) {  // The code; the call's kind, type and operation.
    std::string bad = out.bytes();
    bad[place] = 63;
    ByteReader in(std::as_bytes(std::span(bad)));
    EXPECT_FALSE(ReadVerdict(&in, &read)) << place;
  }
}

}  // namespace
}  // namespace annulus
