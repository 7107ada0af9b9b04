// MessagePairTest: two ranks in one thread that exchange messages over a link through shared memory.
//
// Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "collectives/engine/messages.h"
#include "tests/collectives/engine/two_message_rank.h"
#include "tests/transport/shm/shm_pair.h"

namespace annulus {

class MessagePairTest : public testing::Test {
 protected:
  // Once `pair_` is made. The first message of a pair makes its peers, and room for others.
  void StartBoth() {
    for (const int side : {0, 1}) ranks_[side].Start(side, pair_.Take(side));
    std::vector<std::byte> words[3] = {std::vector<std::byte>(8), std::vector<std::byte>(8), std::vector<std::byte>(8)};
    for (const int side : {0, 1}) {
      ranks_[side].Post(ranks_[side].MessageOf(true, &words[2], &words));
      ranks_[side].Post(ranks_[side].MessageOf(false, &words[side], &words));
    }
    ASSERT_TRUE(Await([this] { return ranks_[0].ended.size() == 2 && ranks_[1].ended.size() == 2; }));
    for (TwoMessageRank& each : ranks_) each.ended.clear();
  }
  void TearDown() override {
    for (TwoMessageRank& each : ranks_) each.links.Close();
  }
  // Drives both.
  bool Await(const std::function<bool()>& over) {
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while (!over() && Now() < deadline) {
      for (TwoMessageRank& each : ranks_) each.Drive();
    }
    return over();
  }
  Messages& messages(int side) { return *ranks_[side].messages; }

  ShmPair pair_;
  TwoMessageRank ranks_[2];
};

}  // namespace annulus
