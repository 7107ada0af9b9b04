// Messages on simulated links and devices: every one arrives whole and in order; a rank that dies or a link that is cut
// ends whatever waits for it with an error that names the peer. A failing case prints its seed, which replays it.

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <vector>

#include "collectives/engine/messages.h"
#include "tests/collectives/engine/sim_message_rank.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/device/sim_device.h"
#include "tests/soak/rounds.h"
#include "transport/sim/sim_world.h"

namespace annulus {
namespace {

// One message, and where its two ends lie.
struct Letter {
  int from = 0;
  int to = 0;
  DataType type = DataType::kInt32;
  size_t count = 0;
  Bytes content;
  Bytes host_input;  // Unused on a device.
  Bytes host_output;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  bool sent = false;
  bool received = false;
};

// All messages of a job that the seed alone determines.
class Post {
 public:
  Post(uint64_t seed, bool on_device) : random_(seed), on_device_(on_device), world_(WorldOf(seed)) {
    const int n = world_.options().nranks;
    const auto done = [](void* is_done, int, int32_t) { *static_cast<bool*>(is_done) = true; };
    for (int r = 0; r < n; ++r) {
      ranks_.emplace_back(&world_, r, plan_, done);
      if (on_device) ranks_.back().OpenDevice(random_());
    }
    for (int from = 0; from < n; ++from) {
      for (int to = 0; to < n; ++to) {
        if (from == to) continue;
        for (uint64_t left = random_() % 5; left > 0; --left) Write(from, to);
      }
    }
    // Sends and receives of all pairs in any order, but each pair's in its own.
    for (bool sends : {true, false}) {
      for (Letter& letter : letters_) queue_.push_back({&letter, sends});
    }
    std::stable_sort(queue_.begin(), queue_.end(),
                     [this](const Half& left, const Half& right) { return Shuffled(left) < Shuffled(right); });
    for (const Half& half : queue_) Submit(half);
  }

  SimWorld& world() { return world_; }
  const std::list<Letter>& letters() const { return letters_; }
  const SimMessageRank& rank(int r) const { return ranks_[r]; }

  // Runs until every message that can has ended.
  void Run() {
    do {
      for (bool moved = true; moved;) {
        moved = false;
        for (SimMessageRank& rank : ranks_) moved |= rank.Drive();
      }
    } while (world_.AdvanceToNextEvent());
  }

  Bytes Received(const Letter& letter) {
    if (!on_device_) return letter.host_output;
    Bytes bytes(letter.content.size());
    ranks_[letter.to].device()->Read(bytes.data(), letter.output, bytes.size());
    return bytes;
  }

 private:
  struct Half {
    Letter* letter;
    bool sends;
  };

  SimOptions WorldOf(uint64_t seed) {
    plan_.slots = static_cast<int>(2 + random_() % 4);
    plan_.channels = static_cast<int>(1 + random_() % 2);
    plan_.slice_bytes = random_() % 2 == 0 ? 512 : 4096;
    plan_.small_bytes = 64;
    SimOptions options;
    options.seed = seed;
    options.nranks = static_cast<int>(2 + random_() % 3);
    options.kind = static_cast<SimKind>(random_() % 3);
    options.slots = plan_.slots;
    options.slot_bytes = SlotBytes(plan_);
    return options;
  }

  void Write(int from, int to) {
    constexpr size_t kCounts[] = {0, 1, 100, 1000, 5000, 20000};
    Letter& letter = letters_.emplace_back();
    letter.from = from;
    letter.to = to;
    letter.type = static_cast<DataType>(random_() % kNumDataTypes);
    letter.count = kCounts[random_() % std::size(kCounts)];
    letter.content = MakeInput(letter.type, letter.count, from, random_() % 1000);
    const size_t bytes = letter.content.size();
    letter.host_input = letter.content;
    letter.host_output.assign(bytes, std::byte{0xcd});
    letter.input = letter.host_input.data();
    letter.output = letter.host_output.data();
    if (!on_device_) return;
    const auto device = [this](int r) { return ranks_[r].device(); };
    letter.input = device(from)->Allocate(std::max<size_t>(bytes, 1));
    letter.output = device(to)->Allocate(std::max<size_t>(bytes, 1));
    device(from)->Write(letter.input, letter.content.data(), bytes);
  }

  // The same for all halves of one pair and direction: those keep their order.
  uint64_t Shuffled(const Half& half) const {
    const uint64_t lane = static_cast<uint64_t>(half.letter->from * 64 + half.letter->to * 2 + (half.sends ? 1 : 0));
    return std::mt19937_64(lane * 977 + world_.options().seed)();
  }

  void Submit(const Half& half) {
    Letter& letter = *half.letter;
    const int rank = half.sends ? letter.from : letter.to;
    const int peer = half.sends ? letter.to : letter.from;
    bool* const done = half.sends ? &letter.sent : &letter.received;
    DomainQueue* const queue = ranks_[rank].queue();
    ranks_[rank].Post(
        {half.sends, peer, {letter.input, queue}, {letter.output, queue}, letter.count, letter.type, done});
  }

  std::mt19937_64 random_;
  const bool on_device_;
  PlanSettings plan_;
  SimWorld world_;
  std::list<Letter> letters_;  // Requests point into them.
  std::vector<SimMessageRank> ranks_;
  std::vector<Half> queue_;
};

class MessagesSimTest : public testing::TestWithParam<bool> {};

TEST_P(MessagesSimTest, EveryMessageArrivesWhole) {
  for (uint64_t seed = 1; seed <= Rounds(100, 5000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Post post(seed, GetParam());
    post.Run();
    for (int r = 0; r < post.world().options().nranks; ++r) {
      ASSERT_TRUE(post.rank(r).status().ok()) << post.rank(r).status().ToString();
      ASSERT_FALSE(post.rank(r).busy()) << "hang";
    }
    for (const Letter& letter : post.letters()) {
      ASSERT_TRUE(letter.sent && letter.received) << letter.from << " to " << letter.to;
      ASSERT_EQ(post.Received(letter), letter.content) << letter.from << " to " << letter.to;
    }
  }
}

TEST_P(MessagesSimTest, ALostPeerEndsWhatWaitsForIt) {
  uint64_t failures = 0;
  for (uint64_t seed = 1; seed <= Rounds(200, 10000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Post post(seed, GetParam());
    const int n = post.world().options().nranks;
    std::mt19937_64 random(seed * 77);
    const int lost = static_cast<int>(random() % n);
    const int peer = (lost + 1) % n;
    const Nanoseconds at = static_cast<Nanoseconds>(random() % (150 * kMicrosecond));
    const bool dies = random() % 2 == 0;
    if (dies) post.world().KillRank(lost, at);
    if (!dies) post.world().CutLink(lost, peer, at);
    post.Run();
    for (int r = 0; r < n; ++r) {
      if (!post.world().runs(r)) continue;
      const SimMessageRank& rank = post.rank(r);
      ASSERT_TRUE(!rank.busy() || !rank.status().ok()) << "rank " << r << " hangs";
      if (rank.status().ok()) continue;
      ++failures;
      ASSERT_EQ(rank.status().code(), Code::kPeerLost) << rank.status().ToString();
      ASSERT_TRUE(rank.status().peer() >= 0 && rank.status().peer() < n) << rank.status().ToString();
    }
    for (const Letter& letter : post.letters()) {
      if (!letter.received || post.world().dead(letter.to)) continue;
      ASSERT_EQ(post.Received(letter), letter.content) << letter.from << " to " << letter.to;
    }
  }
  EXPECT_GT(failures * 10, Rounds(200, 10000) * 3) << "too few faults hit a message for the test to mean something";
}

INSTANTIATE_TEST_SUITE_P(Memory, MessagesSimTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) { return info.param ? "SimDevice" : "Host"; });

}  // namespace
}  // namespace annulus
