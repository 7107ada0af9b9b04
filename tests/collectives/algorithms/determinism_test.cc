// The promise of docs/determinism.md: for a given number of ranks the bits of a result depend on nothing but the
// inputs.

#include <annulus.h>
#include <gtest/gtest.h>

#include "tests/collectives/harness/c_call.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/collectives/harness/sim_job.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

struct Variant {
  const char* name;
  ClusterConfig config;
  bool in_place = false;
  bool async = false;
};

std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  const auto add = [&variants](const char* name, const char* transport, auto change) {
    Variant variant{name, {}};
    variant.config.transport = transport;
    change(variant);
    variants.push_back(variant);
  };
  add("shm", "shm", [](Variant&) {});
  add("shm again", "shm", [](Variant&) {});
  add("tcp", "tcp", [](Variant&) {});
  add("tcp, 3 sockets", "tcp", [](Variant& v) { v.config.tcp_sockets = 3; });
  add("tcp, checksum", "tcp", [](Variant& v) { v.config.checksum = true; });
  add("tcp, 3 channels", "tcp", [](Variant& v) { v.config.channels = 3; });
  add("shm, 2 channels", "shm", [](Variant& v) { v.config.channels = 2; });
  add("shm, slices of 4 KiB", "shm", [](Variant& v) { v.config.slice_bytes = 4096; });
  add("tcp, slices of 1088 bytes", "tcp", [](Variant& v) { v.config.slice_bytes = 1088; });
  add("shm, no one-hop exchange", "shm", [](Variant& v) { v.config.small_bytes = 0; });
  add("shm, one-hop exchange", "shm", [](Variant& v) { v.config.small_bytes = 64 << 10; });
  add("tcp, one-hop exchange, in place", "tcp", [](Variant& v) { v.config.small_bytes = 64 << 10, v.in_place = true; });
  add("two hosts", "auto", [](Variant& v) { v.config.hosts = 2; });
  add("shm, in place", "shm", [](Variant& v) { v.in_place = true; });
  add("shm, streaming stores", "shm", [](Variant& v) { v.config.shm_stores = "streaming"; });
  add("shm, plain stores, in place", "shm", [](Variant& v) { v.config.shm_stores = "plain", v.in_place = true; });
  add("tcp, in place", "tcp", [](Variant& v) { v.in_place = true; });
  add("shm, asynchronous", "shm", [](Variant& v) { v.async = true; });
  return variants;
}

constexpr uint64_t kInputSeed = 5;

// Every rank's result of `call`, by real ranks.
std::vector<Bytes> RealResults(Variant variant, int nranks, const Call& call) {
  variant.config.nranks = nranks;
  std::vector<Bytes> results(nranks);
  Cluster(variant.config).Run([&](annulus_comm_t* comm, int rank) {
    Bytes input = MakeInput(call.type, InputElements(call, nranks), rank, kInputSeed);
    Bytes output(OutputElements(call, nranks) * TypeBytes(call.type));
    const bool scatter = call.kind == CollectiveKind::kReduceScatter;
    std::byte* out = variant.in_place ? input.data() + (scatter ? rank * output.size() : 0) : output.data();
    if (variant.async) {
      annulus_request_t* request = nullptr;
      ASSERT_EQ(SubmitCall(comm, call, input.data(), out, &request), ANNULUS_OK);
      EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
      annulus_request_free(request);
    } else {
      ASSERT_EQ(RunCall(comm, call, input.data(), out), ANNULUS_OK);
    }
    results[rank].assign(out, out + output.size());
  });
  return results;
}

// The same on simulated links and, with `on_device`, on memory that only a simulated device may touch, late and in an
// order of its own.
std::vector<Bytes> SimulatedResults(uint64_t seed, bool on_device, int nranks, Call call) {
  SimJobOptions options;
  options.world.seed = seed;
  options.world.nranks = nranks;
  options.world.kind = static_cast<SimKind>(seed % 3);
  options.plan.slice_bytes = 512 << seed % 4;
  options.plan.small_bytes = seed % 2 == 0 ? 0 : 4096;
  options.plan.channels = 1 + seed % 2;
  // More ranks have log steps anyway, and a tree for the smallest calls.
  if (seed % 3 == 1 && nranks <= kMaxOneHopRanks) options.plan.algorithm = Algorithm::kLogSteps;
  if (seed % 3 == 2 && nranks <= kMaxOneHopRanks) options.plan.algorithm = Algorithm::kTwoHop;
  options.world.slots = options.plan.slots;
  options.world.slot_bytes = SlotBytes(options.plan);
  call.sequence = 1;
  options.call = call;
  options.input_seed = kInputSeed;
  options.on_device = on_device;
  options.in_place = seed % 5 < 2;
  if (seed % 2 == 1) options.stream_bytes = 0;
  options.timeout = 100 * kSecond;
  SimJob job(options);
  EXPECT_TRUE(job.Run());
  std::vector<Bytes> results;
  for (int rank = 0; rank < nranks; ++rank) {
    EXPECT_TRUE(job.finished(rank));
    results.push_back(job.Output(rank));
  }
  return results;
}

void ExpectSameBits(const Call& call, const std::vector<Bytes>& results, const std::vector<Bytes>& first) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (call.kind == CollectiveKind::kReduce && static_cast<int>(rank) != call.root) continue;
    ASSERT_EQ(results[rank], first[rank]) << "rank " << rank;
    if (call.kind == CollectiveKind::kAllreduce) {
      ASSERT_EQ(results[rank], first[0]) << "ranks 0 and " << rank;
    }
  }
}

// Kind, operation, number of ranks.
using Param = std::tuple<CollectiveKind, ReduceOp, int>;
class DeterminismTest : public testing::TestWithParam<Param> {};

TEST_P(DeterminismTest, BitsAreEqualOverRanksTransportsSlicesChannelsSocketsFormsMemoriesAndRuns) {
  const auto [kind, op, nranks] = GetParam();
  const std::vector<DataType> all = {DataType::kFloat32, DataType::kFloat16,    DataType::kBFloat16,
                                     DataType::kFloat64, DataType::kFloat8E4M3, DataType::kFloat8E5M2};
  for (const DataType type : all) {
    for (size_t count : {5, 8001}) {
      Call call;
      call.kind = kind;
      call.type = type;
      call.op = op;
      call.count = count;
      call.root = kind == CollectiveKind::kReduce ? nranks - 1 : 0;
      std::vector<Bytes> first;
      for (const Variant& variant : Variants()) {
        SCOPED_TRACE(testing::Message() << variant.name << ", " << TypeName(type) << ", count " << count);
        const std::vector<Bytes> results = RealResults(variant, nranks, call);
        if (first.empty()) first = results;
        ExpectSameBits(call, results, first);
        if (HasFatalFailure()) return;
      }
      for (uint64_t seed = 1; seed <= Rounds(12, 300); ++seed) {
        SCOPED_TRACE(testing::Message() << "simulated, seed " << seed << ", " << TypeName(type) << ", " << count);
        ExpectSameBits(call, SimulatedResults(seed, seed % 4 != 0, nranks, call), first);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Allreduce, DeterminismTest,
                         testing::Combine(testing::Values(CollectiveKind::kAllreduce),
                                          testing::Values(ReduceOp::kAvg, ReduceOp::kProd), testing::Values(2, 3, 5)));
INSTANTIATE_TEST_SUITE_P(Others, DeterminismTest,
                         testing::Combine(testing::Values(CollectiveKind::kReduceScatter, CollectiveKind::kReduce),
                                          testing::Values(ReduceOp::kSum), testing::Values(3)));

void ExpectTheRingsBits(const char* transport, int nranks, size_t count) {
  Call call;
  call.kind = CollectiveKind::kAllreduce;
  call.type = DataType::kFloat32;
  call.count = count;
  std::vector<Bytes> results[2];
  for (const bool ring : {false, true}) {
    Variant variant{"", {}};
    variant.config.transport = transport;
    if (ring) variant.config.small_bytes = 0;
    results[ring] = RealResults(variant, nranks, call);
  }
  ExpectSameBits(call, results[0], results[1]);
}

TEST(DeterminismTest, LogStepsOfManyRanksHaveTheRingsBits) {
  for (const char* transport : {"shm", "tcp"}) {
    for (const size_t count : {1025, 2001}) ExpectTheRingsBits(transport, kMaxOneHopRanks + 2, count);
  }
}

TEST(DeterminismTest, LogStepsOverSocketsOfOneHostHaveTheRingsBits) {
  for (const size_t count : {4095, 4097, 8192}) ExpectTheRingsBits("tcp", 9, count);
}

// Those through a tree have bits of their own, the same however it runs.
TEST(DeterminismTest, TheSmallestOfManyRanksHaveTheTreesBits) {
  constexpr int kRanks = kMaxOneHopRanks + 3;
  for (const size_t count : {1, 17, 1024}) {
    Call call;
    call.kind = CollectiveKind::kAllreduce;
    call.type = DataType::kFloat32;
    call.op = count == 17 ? ReduceOp::kAvg : ReduceOp::kSum;
    call.count = count;
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < kRanks; ++rank) inputs.push_back(MakeInput(call.type, count, rank, kInputSeed));
    const std::vector<Bytes> expected(kRanks, ExpectedTreeOutput(call, inputs));
    std::vector<Variant> variants(4, Variant{"shm", {}});
    variants[0].config.transport = "shm";
    variants[1].name = "tcp";
    variants[1].config.transport = "tcp";
    variants[2].name = "in place, slices";
    variants[2].config.slice_bytes = 4096;
    variants[2].in_place = true;
    variants[3].name = "asynchronous, hosts";
    variants[3].config.hosts = 3;
    variants[3].async = true;
    for (const Variant& variant : variants) {
      SCOPED_TRACE(testing::Message() << variant.name << ", count " << count);
      ExpectSameBits(call, RealResults(variant, kRanks, call), expected);
      if (HasFatalFailure()) return;
    }
    for (uint64_t seed = 1; seed <= Rounds(11, 301); seed += 2) {
      SCOPED_TRACE(testing::Message() << "simulated, seed " << seed << ", count " << count);
      ExpectSameBits(call, SimulatedResults(seed, seed % 4 != 1, kRanks, call), expected);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(DeterminismTest, TwoLevelsHaveTheBitsOfTheirLayoutWhateverElseChanges) {
  constexpr int kHosts = 2;
  for (const int nranks : {4, 6}) {
    Variant ring{"ring", {}};
    ring.config.nranks = nranks;
    ring.config.hosts = kHosts;
    ring.config.algorithm = "ring";
    for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
      Call call;
      call.kind = CollectiveKind::kAllreduce;
      call.type = type;
      call.op = ReduceOp::kAvg;
      call.count = 40001;
      std::vector<Bytes> inputs;
      for (int rank = 0; rank < nranks; ++rank) inputs.push_back(MakeInput(type, call.count, rank, kInputSeed));
      const Bytes expected = ExpectedInLevels(call, inputs, GridOf(ring.config));
      EXPECT_NE(expected, ExpectedOutput(call, inputs, 0)) << "the order must matter for its inputs";
      for (Variant variant : Variants()) {
        SCOPED_TRACE(testing::Message() << variant.name << ", " << TypeName(type) << ", " << nranks << " ranks");
        if (variant.config.transport == "shm") variant.config.transport = "auto";  // Which does not reach other hosts.
        variant.config.hosts = kHosts;
        for (const Bytes& result : RealResults(variant, nranks, call)) ASSERT_EQ(result, expected);
      }
      for (const Bytes& result : RealResults(ring, nranks, call))
        ASSERT_EQ(result, ExpectedOutput(call, inputs, 0)) << "ANNULUS_ALGORITHM=ring";
    }
  }
}

TEST(DeterminismTestItself, OrderOfAdditionMattersForItsInputs) {
  // Were the inputs such that every order gives the same bits, the test above would prove nothing.
  Call call;
  call.kind = CollectiveKind::kReduce;
  call.type = DataType::kFloat32;
  call.count = 1000;
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < 3; ++rank) inputs.push_back(MakeInput(call.type, call.count, rank, 5));
  const Bytes from_one = ExpectedOutput(call, inputs, 0);
  call.root = 1;
  EXPECT_NE(from_one, ExpectedOutput(call, inputs, 1));
}

}  // namespace
}  // namespace annulus
