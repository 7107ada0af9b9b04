// The promise of docs/determinism.md: for a given number of ranks the bits of a result depend on nothing but the
// inputs.

#include <annulus.h>
#include <gtest/gtest.h>

#include "tests/collectives/cluster.h"
#include "tests/collectives/oracle.h"

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
  add("shm, in place", "shm", [](Variant& v) { v.in_place = true; });
  add("tcp, in place", "tcp", [](Variant& v) { v.in_place = true; });
  add("shm, asynchronous", "shm", [](Variant& v) { v.async = true; });
  return variants;
}

// Every rank's result of one allreduce.
std::vector<Bytes> Allreduce(Variant variant, int nranks, const Call& call) {
  variant.config.nranks = nranks;
  std::vector<Bytes> results(nranks);
  const auto type = static_cast<annulus_type_t>(call.type);
  const auto op = static_cast<annulus_op_t>(call.op);
  Cluster(variant.config).Run([&](annulus_comm_t* comm, int rank) {
    Bytes input = MakeInput(call.type, call.count, rank, 5);
    Bytes output(input.size());
    std::byte* out = variant.in_place ? input.data() : output.data();
    if (variant.async) {
      annulus_request_t* request = nullptr;
      ASSERT_EQ(annulus_allreduce_async(comm, input.data(), out, call.count, type, op, &request), ANNULUS_OK);
      EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
      annulus_request_free(request);
    } else {
      ASSERT_EQ(annulus_allreduce(comm, input.data(), out, call.count, type, op), ANNULUS_OK);
    }
    results[rank] = variant.in_place ? input : output;
  });
  return results;
}

class DeterminismTest : public testing::TestWithParam<int> {};

TEST_P(DeterminismTest, BitsAreEqualOverRanksTransportsSlicesChannelsSocketsFormsAndRuns) {
  for (DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16, DataType::kFloat64}) {
    for (size_t count : {5, 8001}) {
      Call call;
      call.kind = CollectiveKind::kAllreduce;
      call.type = type;
      call.op = ReduceOp::kAvg;
      call.count = count;
      Bytes first;
      for (const Variant& variant : Variants()) {
        const std::vector<Bytes> results = Allreduce(variant, GetParam(), call);
        if (first.empty()) first = results[0];
        for (int rank = 0; rank < GetParam(); ++rank) {
          ASSERT_EQ(results[rank], first)
              << variant.name << ", rank " << rank << ", " << TypeName(type) << ", count " << count;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeterminismTest, testing::Values(2, 3, 5));

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
