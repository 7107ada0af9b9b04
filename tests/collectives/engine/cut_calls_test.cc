// Whole collectives over TCP links whose connections are cut after every possible number of bytes: the ranks get the
// same bits, nothing is lost and nothing comes twice. One thread drives the engines of all ranks and the network
// between them, so a case is replayed by its number of bytes. As a driver does, each rank moves the links of its
// current call, and tends the others.
#include <gtest/gtest.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "collectives/algorithms/table.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/messages.h"
#include "collectives/observe/monitor.h"
#include "tests/collectives/engine/posted_messages.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/soak/rounds.h"
#include "tests/transport/tcp/cut_link.h"

namespace annulus {
namespace {

constexpr std::byte kUntouched{0xcd};
constexpr int kTurns = 20'000;

struct Story {
  const char* name;
  int nranks = 3;
  size_t count = 50;  // Elements.
  size_t slice_bytes = 64;
  size_t small_bytes = 0;  // 0: every call goes round the ring.
  bool in_place = false;
  bool cuts_all = false;  // All connections at once, not only the one over which the last byte came.
  CutLinkOptions link = {};
  // Calls before the allreduces, for which one end of a link only sends: it may be inside the next call, which does not
  // use that link, when what it sent is lost.
  size_t message_bytes = 0;    // From rank 0 to rank 1; 0: none.
  size_t broadcast_count = 0;  // Elements, from rank 0; 0: none.
  bool has_log_steps = false;
};

// Two allreduces after each other, on ranks that one thread drives. A rank leaves at once when it has its results.
class CutJob {
 public:
  CutJob(const Story& story, asio::io_context* context) : story_(story), ranks_(static_cast<size_t>(story.nranks)) {
    plan_.slots = 4;
    plan_.slice_bytes = story.slice_bytes;
    plan_.small_bytes = story.small_bytes;
    if (story.has_log_steps) plan_.algorithm = Algorithm::kLogSteps;
    if (story.broadcast_count > 0) calls_.push_back({CollectiveKind::kBroadcast, story.broadcast_count});
    calls_.insert(calls_.end(), 2, {CollectiveKind::kAllreduce, story.count});
    topology_.nranks = story.nranks;
    topology_.by_system_calls = true;
    CutLinkOptions options = story.link;
    options.slots = plan_.slots;
    options.slot_bytes = SlotBytes(plan_);
    for (int r = 0; r < story.nranks; ++r) {
      ranks_[r].links = std::make_unique<Links>(story.nranks, plan_.channels + 1);
      ranks_[r].monitor = std::make_unique<Monitor>(story.nranks);
    }
    for (int r = 0; r < story.nranks; ++r) {
      for (const NeededLink& link : LinksNeeded(r, {plan_, topology_})) {
        if (link.peer < r) continue;
        links_.push_back(std::make_unique<CutLink>(context, options, r, link.peer));
        ranks_[r].links->Add(link.peer, link.channel, links_.back()->TakeEnd(0));
        ranks_[link.peer].links->Add(r, link.channel, links_.back()->TakeEnd(1));
      }
    }
    for (int r = 0; r < story.nranks; ++r) {
      ranks_[r].engine = std::make_unique<Engine>(r, plan_, topology_, ranks_[r].links.get(), ranks_[r].monitor.get());
      if (story.message_bytes > 0 && r < 2) {
        PostMessage(r);
      } else {
        Start(r, 1);
      }
    }
  }

  // Passes `cut_at` bytes on, cuts, and goes on to the end. Returns how many bytes were passed on in all.
  size_t Run(size_t cut_at, uint64_t* again) {
    size_t passed = 0;
    size_t to_cut = cut_at;
    for (int turn = 0; turn < kTurns && !done(); ++turn) {
      for (int r = 0; r < story_.nranks && !testing::Test::HasFailure(); ++r) Drive(r);
      for (const auto& link : links_) {
        for (int lane = 0; lane < link->lanes(); ++lane) {
          for (const int from : {0, 1}) {
            const size_t bytes = link->Pass(lane, from, to_cut - passed);
            passed += bytes;
            if (passed != to_cut) continue;
            to_cut = SIZE_MAX;
            *again += Cut(link.get(), lane);
          }
        }
      }
    }
    EXPECT_TRUE(done()) << "a hang";
    return passed;
  }

 private:
  struct Rank {
    std::unique_ptr<Links> links;
    std::unique_ptr<Monitor> monitor;
    std::unique_ptr<Engine> engine;
    PostedMessages posted;
    std::unique_ptr<Messages> messages;  // Null: it has none.
    bool has_message = false;            // It is over.
    Bytes input, output;
    uint64_t call = 0;  // Number of the current one: 0 before the first, and one more than there are after the last.
    bool closed = false;
  };
  struct Planned {
    CollectiveKind kind;
    size_t count;
  };

  Call CallOf(uint64_t sequence) const {
    const Planned& planned = calls_[sequence - 1];
    return {.sequence = sequence,
            .kind = planned.kind,
            .type = DataType::kFloat32,
            .op = ReduceOp::kSum,
            .count = planned.count};
  }

  Bytes InputOf(int r, uint64_t sequence) const {
    return MakeInput(DataType::kFloat32, calls_[sequence - 1].count, r, 1000 + sequence);
  }

  Bytes MessageData() const { return MakeInput(DataType::kInt8, story_.message_bytes, 0, 1000); }

  void PostMessage(int r) {
    Rank& rank = ranks_[r];
    MessagesConfig config;
    config.rank = r;
    config.nranks = story_.nranks;
    config.plan = plan_;
    config.links = rank.links.get();
    config.monitor = rank.monitor.get();
    config.timeout = 3600 * kSecond;
    config.has_posted = &rank.posted.has_any;
    config.first_posted = [&rank](Message* message) { return rank.posted.First(message); };
    config.accept_first = [&rank] { rank.posted.AcceptFirst(); };
    config.done = [&rank](void*, int, int32_t) { rank.has_message = true; };
    rank.messages = std::make_unique<Messages>(std::move(config));
    rank.input = MessageData();
    rank.output = Bytes(rank.input.size(), kUntouched);
    Message message;
    message.sends = r == 0;
    message.peer = 1 - r;
    if (message.sends) message.input = ConstBuffer(rank.input.data());
    if (!message.sends) message.output = Buffer(rank.output.data());
    message.count = rank.input.size();
    message.type = DataType::kInt8;
    message.cookie = &rank;
    rank.posted.Add(message);
  }

  void DriveMessage(int r) {
    Rank& rank = ranks_[r];
    bool moved = false;
    const Status status = rank.messages->Progress(&moved);
    ASSERT_TRUE(status.ok()) << status.ToString();
    if (!rank.has_message) return;
    if (r == 1) {
      ASSERT_EQ(rank.output, MessageData());
    }
    EndCall(r);
  }

  void Start(int r, uint64_t sequence) {
    Rank& rank = ranks_[r];
    rank.call = sequence;
    rank.input = InputOf(r, sequence);
    rank.output = story_.in_place ? rank.input : Bytes(rank.input.size(), kUntouched);
    const ConstBuffer input(story_.in_place ? rank.output.data() : rank.input.data(), nullptr);
    const Call call = CallOf(sequence);
    rank.engine->Start(call, {input, Buffer(rank.output.data(), nullptr), call.count, {}, {}, nullptr, {}});
  }

  void Drive(int r) {
    Rank& rank = ranks_[r];
    bool moved = false;
    if (rank.call > calls_.size()) return Leave(&rank);
    rank.links->Tend();
    if (rank.call == 0) return DriveMessage(r);
    const Status status = rank.engine->Progress(&moved);
    ASSERT_TRUE(status.ok()) << status.ToString();
    if (!rank.engine->done()) return;
    std::vector<Bytes> inputs;
    for (int each = 0; each < story_.nranks; ++each) inputs.push_back(InputOf(each, rank.call));
    ASSERT_EQ(rank.output, ExpectedOutput(CallOf(rank.call), inputs, r)) << "rank " << r << ", call " << rank.call;
    EndCall(r);
  }

  // Goes on with the next one, if any.
  void EndCall(int r) {
    Rank& rank = ranks_[r];
    // The memory belongs to the user again, who may write it.
    std::fill(rank.input.begin(), rank.input.end(), std::byte{0xdd});
    std::fill(rank.output.begin(), rank.output.end(), std::byte{0xdd});
    rank.call < calls_.size() ? Start(r, rank.call + 1) : void(++rank.call);
  }

  // What it sent last may still be lost.
  static void Leave(Rank* rank) {
    rank->closed = true;
    for (const auto& end : rank->links->all()) rank->closed &= end->Close();
  }

  uint64_t Cut(CutLink* link, int lane) {
    if (!story_.cuts_all) return link->Cut(lane);
    uint64_t again = 0;
    for (const auto& each : links_) {
      for (int other = 0; other < each->lanes(); ++other) again += each->Cut(other);
    }
    return again;
  }

  bool done() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.closed; });
  }

  const Story story_;
  std::vector<Planned> calls_;
  PlanSettings plan_;
  Topology topology_;
  std::vector<std::unique_ptr<CutLink>> links_;
  std::vector<Rank> ranks_;
};

class CutCallsTest : public testing::TestWithParam<Story> {
 protected:
  size_t Run(size_t cut_at, uint64_t* again) { return CutJob(GetParam(), &context_).Run(cut_at, again); }

  asio::io_context context_;
};

TEST_P(CutCallsTest, CutAfterEveryByte) {
  uint64_t again = 0;
  const size_t total = Run(SIZE_MAX, &again);
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(again, 0u);
  // Sealing takes time, and so do many links: every run takes a share of the numbers, of which each byte of a header is
  // one.
  const bool many = GetParam().nranks > 3;
  const size_t cases = std::min<size_t>(total, Rounds(GetParam().link.seals ? 60 : many ? 200 : 500, total));
  for (size_t i = 0; i < cases; ++i) {
    const size_t cut_at = i * total / cases + i % 64 * (cases < total);
    if (cut_at >= total) break;
    const size_t passed = Run(cut_at, &again);
    EXPECT_TRUE(GetParam().link.seals || passed == total) << passed << " bytes: something came twice, or never";
    ASSERT_FALSE(HasFailure()) << "cut after " << cut_at << " of " << total << " bytes";
  }
  EXPECT_GT(again, 0u);
  std::printf("%zu cuts of %zu bytes, %llu bytes sent again\n", cases, total, static_cast<unsigned long long>(again));
}

constexpr CutLinkOptions kChecksums = {.checksum = true};
constexpr CutLinkOptions kThreeLanes = {.lanes = 3};
constexpr CutLinkOptions kSealed = {.seals = true};
constexpr CutLinkOptions kAllOfThese = {.lanes = 2, .checksum = true, .seals = true};

INSTANTIATE_TEST_SUITE_P(
    Stories, CutCallsTest,
    testing::Values(
        Story{"Ring"}, Story{.name = "RingOfTwo", .nranks = 2}, Story{.name = "InPlace", .in_place = true},
        Story{.name = "AllAtOnce", .cuts_all = true}, Story{.name = "OneHop", .count = 20, .small_bytes = 4096},
        Story{.name = "LentMemory", .nranks = 2, .count = 2500, .slice_bytes = 8192},
        Story{.name = "LogSteps", .nranks = 5, .small_bytes = 4096, .has_log_steps = true},
        Story{.name = "OneHopThenRing", .nranks = 4, .small_bytes = 128, .broadcast_count = 20},
        Story{.name = "MessageThenRing", .message_bytes = 50}, Story{.name = "Checksums", .link = kChecksums},
        Story{.name = "ThreeSockets", .cuts_all = true, .link = kThreeLanes}, Story{.name = "Sealed", .link = kSealed},
        Story{.name = "SealedRingOfTwo", .nranks = 2, .link = kSealed},
        Story{.name = "SealedInPlace", .in_place = true, .link = kSealed},
        Story{.name = "SealedOneHop", .count = 20, .small_bytes = 4096, .link = kSealed},
        Story{.name = "SealedLentMemory", .nranks = 2, .count = 2500, .slice_bytes = 8192, .link = kSealed},
        Story{.name = "SealedOfTwoSocketsWithChecksums", .cuts_all = true, .link = kAllOfThese}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace annulus
