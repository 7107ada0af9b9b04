// Messages with tags, and receives from any rank, on simulated links: each receive gets the message that a sequential
// model gives it, in whatever order links deliver, or one that the model allows where several ranks are asked; nothing
// hangs; a rank that dies or a link that is cut ends whatever waits for it alone. A failing case prints its seed, which
// replays it.

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <utility>
#include <vector>

#include "collectives/engine/messages.h"
#include "tests/collectives/engine/sim_message_rank.h"
#include "tests/soak/rounds.h"
#include "transport/sim/sim_world.h"

namespace annulus {
namespace {

// One end of a message. Its first number says which message it is.
struct Halfway {
  bool sends = false;
  int rank = 0;
  int peer = 0;     // Perhaps kAnyPeer.
  int32_t tag = 0;  // Perhaps kAnyTag.
  std::vector<int32_t> data;
  bool is_done = false;
  int got_from = -2;
  int32_t got_tag = -2;
};

struct SortingRank {
  SimMessageRank base;
  std::vector<Halfway*> halves;  // In the order in which they are posted.
  size_t posted = 0;
};

// What receives of a job ask for.
enum class Asks {
  kRanks,    // One rank each.
  kAny,      // Any rank, but never beside others of the same tag.
  kCompete,  // Any and one rank beside each other, so that some may get nothing.
};

// All messages of a job have one size, so that every pairing is a valid one; sizes differ between jobs.
class Sorting {
 public:
  Sorting(uint64_t seed, Asks asks) : random_(seed), asks_(asks), world_(WorldOf(seed)), with_any_(asks == Asks::kAny) {
    const auto done = [](void* cookie, int peer, int32_t tag) {
      Halfway* const half = static_cast<Halfway*>(cookie);
      half->is_done = true;
      half->got_from = peer;
      half->got_tag = tag;
    };
    for (int r = 0; r < nranks(); ++r) ranks_.push_back({SimMessageRank(&world_, r, plan_, done), {}});
    constexpr size_t kCounts[] = {1, 100, 1000, 5000, 20000};
    count_ = kCounts[random_() % std::size(kCounts)];
    if (competes() && count_ > 100) count_ = 20000;  // What nobody asks for fits into the store, or is offered.
    for (int from = 0; from < nranks(); ++from) {
      for (int to = 0; to < nranks(); ++to) {
        if (from != to) Write(from, to);
      }
    }
    for (SortingRank& rank : ranks_) Shuffle(&rank.halves);
  }

  SimWorld& world() { return world_; }
  bool competes() const { return asks_ == Asks::kCompete; }
  int nranks() const { return world_.options().nranks; }
  const SortingRank& rank(int r) const { return ranks_[r]; }
  const std::list<Halfway>& halves() const { return halves_; }

  // Ranks post their halves a few at a time, at random, while messages move.
  void Run() {
    do {
      for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < nranks(); ++r) {
          for (uint64_t number = random_() % 5; number-- > 2;) moved |= PostNext(r);
          moved |= ranks_[r].base.Drive();
        }
      }
      for (int r = 0; r < nranks(); ++r) more_ |= PostNext(r);
    } while (std::exchange(more_, false) || world_.AdvanceToNextEvent());
  }

  // What the model, run on the sends and receives between two ranks alone, gives each receive. Without receives from
  // any rank that is what each has got.
  void ExpectSequentialMatching() const {
    for (int from = 0; from < nranks(); ++from) {
      for (int to = 0; to < nranks(); ++to) {
        if (from != to) ExpectPair(from, to);
      }
    }
  }

  // With receives from any rank several outcomes are right. In each, of the messages of a rank that a receive could
  // have got, those that went to receives posted later, or to it, are none that was sent earlier.
  void ExpectNoOvertaking() const {
    for (const SortingRank& rank : ranks_) {
      std::vector<const Halfway*> receives;
      for (const Halfway* each : rank.halves) {
        if (!each->sends && each->is_done) receives.push_back(each);
      }
      for (size_t i = 0; i < receives.size(); ++i) {
        const Halfway& one = *receives[i];
        ASSERT_EQ(one.got_tag, one.data.back()) << "the tag that was told is that of another message";
        ASSERT_TRUE(one.tag == kAnyTag || one.tag == one.got_tag);
        ASSERT_TRUE(one.peer == kAnyPeer || one.peer == one.got_from);
        for (size_t k = i + 1; k < receives.size(); ++k) {
          const Halfway& later = *receives[k];
          const bool could = later.got_from == one.got_from && (one.tag == kAnyTag || one.tag == later.got_tag);
          ASSERT_TRUE(!could || one.data.front() < later.data.front()) << "a message was overtaken";
        }
      }
    }
  }

  // A receive that competes with others has its message before those that were posted later have theirs, and nothing
  // that could be paired is left.
  void ExpectFairCompetition() const {
    for (const SortingRank& rank : ranks_) {
      for (size_t i = 0; i < rank.halves.size(); ++i) {
        const Halfway& one = *rank.halves[i];
        if (one.sends || one.is_done) continue;
        for (size_t k = i + 1; k < rank.halves.size(); ++k) {
          const Halfway& later = *rank.halves[k];
          if (later.sends || !later.is_done) continue;
          ASSERT_FALSE(Takes(one, later.got_from, later.got_tag)) << "a receive was overtaken by a later one";
        }
        for (const Halfway& send : halves_) {
          if (!send.sends || send.peer != one.rank || !Takes(one, send.rank, send.tag)) continue;
          ASSERT_TRUE(IsReceived(send)) << "a receive and its message do not find each other";
        }
      }
    }
  }

 private:
  static bool Takes(const Halfway& receive, int from, int32_t tag) {
    return (receive.peer == kAnyPeer || receive.peer == from) && (receive.tag == kAnyTag || receive.tag == tag);
  }

  bool IsReceived(const Halfway& send) const {
    return std::ranges::any_of(halves_, [&send](const Halfway& each) {
      return !each.sends && each.is_done && each.rank == send.peer && each.data.front() == send.data.front();
    });
  }

  SimOptions WorldOf(uint64_t seed) {
    plan_.slots = static_cast<int>(2 + random_() % 4);
    plan_.slice_bytes = random_() % 2 == 0 && !competes() ? 512 : 4096;
    plan_.small_bytes = 64;
    SimOptions options;
    options.seed = seed;
    options.nranks = static_cast<int>(2 + random_() % 3);
    options.kind = static_cast<SimKind>(random_() % 3);
    options.slots = plan_.slots;
    options.slot_bytes = SlotBytes(plan_);
    return options;
  }

  // Messages whose tags and receives can be paired whatever the order: as many receives for each tag as messages have
  // it; those with any tag only where all of the pair are, and those from any rank with one tag only where all that ask
  // for it are.
  void Write(int from, int to) {
    const int number = static_cast<int>(random_() % 6);
    const int ntags = static_cast<int>(1 + random_() % 3);
    const bool any_tag = random_() % 4 == 0;
    for (int i = 0; i < number; ++i) {
      const int32_t tag = static_cast<int32_t>(random_() % ntags);
      std::vector<int32_t> content(count_ + 1, from * 1000 + i);
      content.back() = tag;
      halves_.push_back({true, from, to, tag, content});
      ranks_[from].halves.push_back(&halves_.back());
      const bool asks_all = to % 2 == 0;  // For any rank and any tag.
      const bool from_any = with_any_ && (asks_all || tag == 1);
      const int32_t asked = (with_any_ ? asks_all : any_tag) ? kAnyTag : tag;
      halves_.push_back({false, to, from_any ? kAnyPeer : from, asked, std::vector<int32_t>(count_ + 1, -1)});
      if (competes()) {
        halves_.back().peer = random_() % 3 == 0 ? kAnyPeer : from;
        halves_.back().tag = random_() % 4 == 0 ? kAnyTag : tag;
      }
      ranks_[to].halves.push_back(&halves_.back());
    }
  }

  // Sends to a rank keep their order, by their numbers.
  void Shuffle(std::vector<Halfway*>* halves) {
    std::shuffle(halves->begin(), halves->end(), random_);
    for (int peer = 0; peer < nranks(); ++peer) {
      std::vector<size_t> places;
      std::vector<Halfway*> sends;
      for (size_t i = 0; i < halves->size(); ++i) {
        Halfway* const each = (*halves)[i];
        if (!each->sends || each->peer != peer) continue;
        places.push_back(i);
        sends.push_back(each);
      }
      const auto before = [](const Halfway* left, const Halfway* right) { return left->data[0] < right->data[0]; };
      std::sort(sends.begin(), sends.end(), before);
      for (size_t i = 0; i < places.size(); ++i) (*halves)[places[i]] = sends[i];
    }
  }

  bool PostNext(int r) {
    SortingRank& rank = ranks_[r];
    if (rank.posted == rank.halves.size() || !rank.base.status().ok() || !world_.runs(r)) return false;
    Halfway* const half = rank.halves[rank.posted++];
    Message message;
    message.sends = half->sends;
    message.peer = half->peer;
    message.tag = half->tag;
    message.input = ConstBuffer(half->data.data());
    message.output = Buffer(half->data.data());
    message.count = half->data.size();
    message.type = DataType::kInt32;
    message.cookie = half;
    rank.base.Post(message);
    return true;
  }

  void ExpectPair(int from, int to) const {
    std::vector<const Halfway*> unread;
    for (const Halfway* each : ranks_[from].halves) {
      if (each->sends && each->peer == to) unread.push_back(each);
    }
    for (const Halfway* each : ranks_[to].halves) {
      if (each->sends || each->peer != from) continue;
      const auto takes = [each](const Halfway* send) { return each->tag == kAnyTag || each->tag == send->tag; };
      const auto found = std::find_if(unread.begin(), unread.end(), takes);
      ASSERT_NE(found, unread.end());
      ASSERT_TRUE(each->is_done);
      ASSERT_EQ(each->data, (*found)->data) << from << " to " << to;
      ASSERT_EQ(each->got_from, from);
      ASSERT_EQ(each->got_tag, (*found)->tag);
      unread.erase(found);
    }
  }

  std::mt19937_64 random_;
  const Asks asks_;
  PlanSettings plan_;
  SimWorld world_;
  const bool with_any_;
  size_t count_ = 0;
  bool more_ = false;
  std::list<Halfway> halves_;
  std::vector<SortingRank> ranks_;
};

void ExpectNoHang(const Sorting& sorting) {
  for (int r = 0; r < sorting.nranks(); ++r) {
    ASSERT_TRUE(sorting.rank(r).base.status().ok()) << sorting.rank(r).base.status().ToString();
    ASSERT_FALSE(sorting.rank(r).base.busy()) << "rank " << r << " hangs";
  }
}

TEST(MessageTagsSimTest, EachReceiveGetsTheMessageOfTheSequentialModel) {
  for (uint64_t seed = 1; seed <= Rounds(kSanitized ? 4 : 80, 20000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Sorting sorting(seed, Asks::kRanks);
    sorting.Run();
    ASSERT_NO_FATAL_FAILURE(ExpectNoHang(sorting));
    ASSERT_NO_FATAL_FAILURE(sorting.ExpectSequentialMatching());
  }
}

TEST(MessageTagsSimTest, ReceivesFromAnyRankGetEveryMessageAndNoneOvertakes) {
  for (uint64_t seed = 1; seed <= Rounds(kSanitized ? 4 : 80, 20000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Sorting sorting(seed, Asks::kAny);
    sorting.Run();
    ASSERT_NO_FATAL_FAILURE(ExpectNoHang(sorting));
    ASSERT_NO_FATAL_FAILURE(sorting.ExpectNoOvertaking());
    for (const Halfway& half : sorting.halves()) ASSERT_TRUE(half.is_done);
  }
}

TEST(MessageTagsSimTest, ReceivesFromOneRankAndFromAnyCompeteInTheOrderOfPosting) {
  for (uint64_t seed = 1; seed <= Rounds(kSanitized ? 10 : 200, 20000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Sorting sorting(seed, Asks::kCompete);
    sorting.Run();
    for (int r = 0; r < sorting.nranks(); ++r)
      ASSERT_TRUE(sorting.rank(r).base.status().ok()) << sorting.rank(r).base.status().ToString();
    ASSERT_NO_FATAL_FAILURE(sorting.ExpectNoOvertaking());
    ASSERT_NO_FATAL_FAILURE(sorting.ExpectFairCompetition());
  }
}

TEST(MessageTagsSimTest, ALostPeerEndsWhatWaitsForIt) {
  uint64_t failures = 0;
  for (uint64_t seed = 1; seed <= Rounds(120, 20000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Sorting sorting(seed, seed % 2 == 0 ? Asks::kAny : Asks::kRanks);
    std::mt19937_64 random(seed * 77);
    const int n = sorting.nranks();
    const int lost = static_cast<int>(random() % n);
    const Nanoseconds at = static_cast<Nanoseconds>(random() % (150 * kMicrosecond));
    if (random() % 2 == 0) {
      sorting.world().KillRank(lost, at);
    } else {
      sorting.world().CutLink(lost, (lost + 1) % n, at);
    }
    sorting.Run();
    for (int r = 0; r < n; ++r) {
      if (!sorting.world().runs(r)) continue;
      const SortingRank& rank = sorting.rank(r);
      // A receive from any rank may wait for those that are left.
      const bool waits_for_any = seed % 2 == 0 && n > 2;
      ASSERT_TRUE(!rank.base.busy() || !rank.base.status().ok() || waits_for_any) << "rank " << r << " hangs";
      if (rank.base.status().ok()) continue;
      ++failures;
      ASSERT_EQ(rank.base.status().code(), Code::kPeerLost) << rank.base.status().ToString();
      ASSERT_TRUE(rank.base.status().peer() >= 0 && rank.base.status().peer() < n) << rank.base.status().ToString();
    }
  }
  EXPECT_GT(failures * 10, Rounds(120, 20000) * 2) << "too few faults hit a message for the test to mean something";
}

}  // namespace
}  // namespace annulus
