// Registered memory through the C API: every mix of registered and other buffers gives the oracle's bits, in every
// collective, on shared memory and where shared memory and TCP meet; and it is read in place.

#include <annulus.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/collectives/harness/c_call.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/oracle.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

enum class Kind { kOrdinary, kAllocated, kRegistered };

class Memory {
 public:
  Memory(Kind kind, size_t bytes) : kind_(kind), bytes_(bytes + kSlack) {
    if (kind == Kind::kAllocated) {
      EXPECT_EQ(annulus_mem_alloc(bytes_, &data_), ANNULUS_OK) << LastMessage();
      return;
    }
    block_ = std::make_unique<std::byte[]>(bytes_);
    data_ = block_.get();
    if (kind_ != Kind::kRegistered) return;
    // malloc gives small blocks from its heap, which cannot be shared.
    const annulus_status_t status = annulus_mem_register(data_, bytes_);
    EXPECT_TRUE(status == ANNULUS_OK || status == ANNULUS_UNSUPPORTED) << LastMessage();
    if (status != ANNULUS_OK) kind_ = Kind::kOrdinary;
  }
  Memory(const Memory&) = delete;
  ~Memory() {
    if (kind_ == Kind::kOrdinary) return;
    EXPECT_EQ(kind_ == Kind::kAllocated ? annulus_mem_free(data_) : annulus_mem_deregister(data_), ANNULUS_OK);
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  // Large enough that malloc maps it.
  static constexpr size_t kSlack = 256 * 1024;

  Kind kind_;
  size_t bytes_;
  std::unique_ptr<std::byte[]> block_;
  void* data_ = nullptr;
};

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kAllreduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllgather, CollectiveKind::kBroadcast,
    CollectiveKind::kReduce,    CollectiveKind::kGather,        CollectiveKind::kScatter,   CollectiveKind::kAlltoall};

bool HasParts(CollectiveKind kind) { return IsGather(kind) || IsScatter(kind) || IsAlltoall(kind); }

// Makes the call on `rank` with buffers of those kinds, and compares its output with the oracle's.
void Check(annulus_comm_t* comm, const Call& call, int rank, const ClusterConfig& config, Kind in_kind, Kind out_kind,
           bool in_place) {
  const int nranks = config.nranks;
  std::vector<Bytes> inputs;
  for (int r = 0; r < nranks; ++r) inputs.push_back(MakeInput(call.type, InputElements(call, nranks), r, call.count));
  const size_t element = TypeBytes(call.type);
  const size_t part = call.count * element * static_cast<size_t>(rank);
  const size_t out_bytes = OutputElements(call, nranks) * element;
  const Bytes& input = inputs[static_cast<size_t>(rank)];
  Memory from(in_kind, std::max(input.size(), out_bytes));
  Memory to(out_kind, out_bytes);
  const bool at_root = rank == call.root;
  in_place = in_place && !IsAlltoall(call.kind) && (at_root || !HasRoot(call.kind) || !HasParts(call.kind));
  std::byte* send = from.data();
  std::byte* recv = in_place ? from.data() : to.data();
  if (in_place && (IsAllgather(call.kind) || IsGather(call.kind))) send += part;
  if (in_place && (IsReduceScatter(call.kind) || IsScatter(call.kind))) recv += part;
  std::memcpy(send, input.data(), input.size());
  const annulus_status_t status =
      HasParts(call.kind) ? RunPartsCall(comm, {call, send, recv}) : RunCall(comm, call, send, recv);
  annulus_error_t error{};
  error.struct_bytes = sizeof error;
  annulus_last_error(&error);
  ASSERT_EQ(status, ANNULUS_OK) << error.message;
  const Bytes expected = ExpectedOn(GridOf(config), call, inputs, rank);
  ASSERT_TRUE(expected.empty() || std::memcmp(recv, expected.data(), expected.size()) == 0)
      << KindName(call.kind) << " of " << call.count << (in_place ? " in place" : "") << ", rank " << rank;
  if (in_place && recv == send) return;
  ASSERT_TRUE(in_place || std::memcmp(send, input.data(), input.size()) == 0) << "the input was written";
}

using Param = std::tuple<int, int>;  // Ranks, pretended hosts.
class RegisteredTest : public testing::TestWithParam<Param> {
 protected:
  ClusterConfig Config() const {
    ClusterConfig config;
    config.nranks = std::get<0>(GetParam());
    config.hosts = std::get<1>(GetParam());
    return config;
  }
};

TEST_P(RegisteredTest, EveryMixOfBuffersGivesTheOraclesBits) {
  for (const int64_t slice_bytes : {int64_t{0}, int64_t{8192}}) {
    ClusterConfig c = Config();
    c.slice_bytes = slice_bytes;
    Cluster(c).Run([&c](annulus_comm_t* comm, int rank) {
      std::mt19937 random(static_cast<unsigned>(rank));  // Ranks need not have the same mix.
      for (CollectiveKind kind : kKinds) {
        for (const size_t count : {size_t{100}, size_t{2500}, size_t{kSanitized ? 40001 : 70001}}) {
          for (const bool in_place : {false, true}) {
            Call call;
            call.kind = kind;
            call.type = count % 2 == 0 ? DataType::kFloat32 : DataType::kBFloat16;
            call.op = count % 4 == 0 ? ReduceOp::kSum : ReduceOp::kAvg;
            call.count = count;
            call.root = static_cast<int>(count) % c.nranks;
            const Kind in = static_cast<Kind>(random() % 3);
            const Kind out = static_cast<Kind>(random() % 3);
            Check(comm, call, rank, c, in, out, in_place);
            if (HasFatalFailure()) return;
          }
        }
      }
    });
  }
}

TEST_P(RegisteredTest, MessagesAndGroupsGoInPlaceToo) {
  const ClusterConfig c = Config();
  Cluster(c).Run([&c](annulus_comm_t* comm, int rank) {
    constexpr size_t kCount = 200000;
    Memory memory(Kind::kAllocated, 3 * kCount * sizeof(float));
    float* const mine = reinterpret_cast<float*>(memory.data());
    float* const theirs = mine + kCount;
    for (size_t i = 0; i < 3 * kCount; ++i) mine[i] = static_cast<float>(rank + 1);
    const int next = (rank + 1) % c.nranks;
    const int prev = (rank + c.nranks - 1) % c.nranks;
    annulus_request_t* request = nullptr;
    ASSERT_EQ(annulus_send_async(comm, mine, kCount, ANNULUS_FLOAT32, next, &request), ANNULUS_OK);
    ASSERT_EQ(annulus_recv(comm, theirs, kCount, ANNULUS_FLOAT32, prev), ANNULUS_OK);
    ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
    annulus_request_free(request);
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(theirs[i], static_cast<float>(prev + 1)) << i;
    Calls calls;
    for (float* tensor : {mine, mine + 2 * kCount})
      calls.Allreduce(tensor, tensor, kCount, ANNULUS_FLOAT32, ANNULUS_SUM);
    ASSERT_EQ(calls.Submit(comm, &request), ANNULUS_OK);
    ASSERT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
    annulus_request_free(request);
    const float sum = static_cast<float>(c.nranks * (c.nranks + 1) / 2);
    for (size_t i = 0; i < kCount; ++i) ASSERT_TRUE(mine[i] == sum && mine[i + 2 * kCount] == sum) << i;
  });
}

// A sanitizer's build, which takes ten times as long, runs two of the five; of threads that meet, one has them all.
std::vector<Param> RanksAndHosts() {
  if (kThreadSanitized) return {Param(4, 2)};
  if (kSanitized) return {Param(3, 0), Param(4, 2)};
  return {Param(2, 0), Param(3, 0), Param(4, 0), Param(3, 2), Param(4, 2)};
}

INSTANTIATE_TEST_SUITE_P(RanksAndHosts, RegisteredTest, testing::ValuesIn(RanksAndHosts()),
                         [](const testing::TestParamInfo<Param>& info) {
                           return std::to_string(std::get<0>(info.param)) + "ranks" +
                                  std::to_string(std::get<1>(info.param)) + "hosts";
                         });

uint64_t SentTo(annulus_comm_t* comm, int peer) {
  annulus_peer_counters_t counters{};
  counters.struct_bytes = sizeof counters;
  EXPECT_EQ(annulus_comm_peer_counters(comm, peer, &counters), ANNULUS_OK) << LastMessage();
  return counters.sent_bytes;
}

class TwoHopsTest : public testing::TestWithParam<int> {};

// A ring would send to the next rank alone.
TEST_P(TwoHopsTest, LargeAllreducesGoStraightToAllWhereAllBuffersAreRegistered) {
  ClusterConfig c;
  c.nranks = GetParam();
  Cluster(c).Run([&c](annulus_comm_t* comm, int rank) {
    const int peer = (rank + 2) % c.nranks;
    struct Case {
      int ordinary_in;   // The rank whose input is not registered; -1: none.
      int ordinary_out;  // The same for outputs.
      Kind others;
      size_t count;
      ReduceOp op = ReduceOp::kSum;
    };
    const Case cases[] = {{-1, -1, Kind::kAllocated, 70001},
                          {1, -1, Kind::kAllocated, kSanitized ? 100001 : 300001},
                          {-1, c.nranks - 1, Kind::kAllocated, 70001},
                          {-1, -1, Kind::kRegistered, kSanitized ? 150000 : 1000000},
                          {-1, -1, Kind::kAllocated, kSanitized ? 100'003 : 2'500'003, ReduceOp::kAvg}};
    for (const Case& each : cases) {
      for (const bool in_place : {false, true}) {
        Call call;
        call.kind = CollectiveKind::kAllreduce;
        call.type = each.count % 2 == 0 ? DataType::kBFloat16 : DataType::kFloat32;
        call.op = each.op;
        call.count = each.count;
        const uint64_t before = SentTo(comm, peer);
        Check(comm, call, rank, c, each.ordinary_in == rank ? Kind::kOrdinary : each.others,
              each.ordinary_out == rank ? Kind::kOrdinary : each.others, in_place);
        if (HasFatalFailure()) return;
        const uint64_t sent = SentTo(comm, peer) - before;
        const bool all = each.ordinary_in < 0 && (each.ordinary_out < 0 || in_place);
        const size_t chunk = each.count / static_cast<size_t>(c.nranks) * TypeBytes(call.type);
        EXPECT_TRUE(all ? sent >= 2 * chunk : sent == 0) << each.count << ": " << sent << " bytes";
      }
    }
  });
}

TEST_P(TwoHopsTest, TheHalvesDoWhereAllInputsAreRegistered) {
  ClusterConfig c;
  c.nranks = GetParam();
  c.slice_bytes = 16384;
  Cluster(c).Run([&c](annulus_comm_t* comm, int rank) {
    const int peer = (rank + 2) % c.nranks;
    for (const CollectiveKind kind : {CollectiveKind::kReduceScatter, CollectiveKind::kAllgather}) {
      for (const int ordinary_in : {-1, 1}) {
        for (const Kind out : {Kind::kOrdinary, Kind::kAllocated}) {
          for (const bool in_place : {false, true}) {
            Call call;
            call.kind = kind;
            call.type = DataType::kFloat32;
            call.count = ordinary_in < 0 && in_place ? 30001 : 50000;
            const uint64_t before = SentTo(comm, peer);
            Check(comm, call, rank, c, ordinary_in == rank ? Kind::kOrdinary : Kind::kAllocated, out, in_place);
            if (HasFatalFailure()) return;
            const uint64_t sent = SentTo(comm, peer) - before;
            const size_t chunk = call.count * sizeof(float);
            EXPECT_TRUE(ordinary_in < 0 ? sent >= chunk : sent == 0) << KindName(kind) << ": " << sent << " bytes";
          }
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TwoHopsTest, testing::Range(3, kSanitized ? 5 : 6));

uint64_t Mapped(annulus_comm_t* comm) {
  annulus_memory_t memory{};
  memory.struct_bytes = sizeof memory;
  EXPECT_EQ(annulus_comm_memory(comm, &memory), ANNULUS_OK);
  return memory.peers_mapped;
}

TEST(RegisteredMemoryTest, PeersMapWhatTheyReadAndForgetWhatIsFreed) {
  static constexpr size_t kBytes = 4 << 20;
  Cluster({}).Run([](annulus_comm_t* comm, int) {
    std::vector<float> ordinary(kBytes / sizeof(float));
    {
      Memory memory(Kind::kAllocated, kBytes);
      float* const data = reinterpret_cast<float*>(memory.data());
      EXPECT_EQ(Mapped(comm), 0u);
      ASSERT_EQ(annulus_allreduce(comm, data, data, kBytes / sizeof(float), ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK);
      EXPECT_GE(Mapped(comm), kBytes) << "nothing was read in place";
      ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
    }
    // What is gone is told with the next large call, and noticed when this end has nothing better to do.
    int64_t mapped = 1;  // On all ranks together.
    for (int i = 0; i < 1000 && mapped > 0; ++i) {
      ASSERT_EQ(
          annulus_allreduce(comm, ordinary.data(), ordinary.data(), ordinary.size(), ANNULUS_FLOAT32, ANNULUS_SUM),
          ANNULUS_OK);
      mapped = static_cast<int64_t>(Mapped(comm));
      ASSERT_EQ(annulus_allreduce(comm, &mapped, &mapped, 1, ANNULUS_INT64, ANNULUS_SUM), ANNULUS_OK);
    }
    EXPECT_EQ(mapped, 0);
    ASSERT_EQ(annulus_barrier(comm), ANNULUS_OK);
  });
}

TEST(RegisteredMemoryTest, ALargeScaledSumIsRightFromRegisteredMemory) {
  Cluster({}).Run([](annulus_comm_t* comm, int rank) {
    constexpr size_t kCount = 300000;
    Memory memory(Kind::kAllocated, kCount * sizeof(float));
    float* const data = reinterpret_cast<float*>(memory.data());
    for (size_t i = 0; i < kCount; ++i) data[i] = 2;
    annulus_op_t op;
    ASSERT_EQ(annulus_op_create_premul_sum(comm, rank + 1.5, &op), ANNULUS_OK);
    ASSERT_EQ(annulus_allreduce(comm, data, data, kCount, ANNULUS_FLOAT32, op), ANNULUS_OK);
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(data[i], 8.0f) << i;
  });
}

TEST(RegisteredMemoryTest, WrongCallsAreRefusedWithAMessage) {
  int on_the_stack[4096];
  EXPECT_EQ(annulus_mem_alloc(0, nullptr), ANNULUS_INVALID_ARGUMENT);
  EXPECT_EQ(annulus_mem_free(on_the_stack), ANNULUS_INVALID_ARGUMENT);
  EXPECT_EQ(annulus_mem_deregister(on_the_stack), ANNULUS_INVALID_ARGUMENT);
  EXPECT_EQ(annulus_mem_register(on_the_stack, sizeof on_the_stack), ANNULUS_UNSUPPORTED);
  EXPECT_NE(LastMessage().find("private anonymous"), std::string::npos);
  annulus_memory_t memory{};
  EXPECT_EQ(annulus_comm_memory(nullptr, &memory), ANNULUS_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace annulus
