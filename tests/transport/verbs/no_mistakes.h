// For programs that run the contract suite on the simulated provider: no test of them made it see a mistake. Included
// by one file of a program.
//
// Threads: as the tests.
#pragma once

#include <gtest/gtest.h>

#include "tests/verbs/provider/simulated_verbs.h"

namespace annulus {

class NoMistakes : public ::testing::Environment {
 public:
  void TearDown() override {
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_GT(counts.written_bytes, 0u);
    EXPECT_EQ(counts.not_ready, 0u) << "a message found no receive: credits are wrong";
    EXPECT_EQ(counts.overruns, 0u);
    EXPECT_EQ(counts.refused_posts, 0u);
    EXPECT_EQ(counts.read_stalls, 0u) << "more READs than the devices had agreed on";
    EXPECT_EQ(counts.busy, 0u) << "something was destroyed before what uses it";
    EXPECT_EQ(counts.objects, 0u) << "something was not given back to the provider";
  }
};

inline const ::testing::Environment* const kNoMistakes = ::testing::AddGlobalTestEnvironment(new NoMistakes);

}  // namespace annulus
