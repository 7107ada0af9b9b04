// The collectives whose buffers hold a part for every rank, through the C API, over real transports: every kind, parts
// of many sizes, with gaps and without, in place and not, blocking and asynchronous; and what they refuse.

#include <annulus.h>
#include <gtest/gtest.h>

#include <barrier>
#include <numeric>

#include "tests/collectives/harness/c_call.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/collectives/harness/links_fixture.h"
#include "tests/collectives/harness/parts_job.h"
#include "tests/soak/rounds.h"

namespace annulus {
namespace {

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kGather,  CollectiveKind::kScatter,        CollectiveKind::kAlltoall, CollectiveKind::kAllgatherv,
    CollectiveKind::kGatherv, CollectiveKind::kReduceScatterv, CollectiveKind::kScatterv, CollectiveKind::kAlltoallv};
enum class Form { kPacked, kGaps, kInPlace, kAsync };

void RunOne(annulus_comm_t* comm, const UserMemory& memory, const PartsJob& job, Form form, int rank) {
  const size_t e = TypeBytes(job.call.type);
  const PartsSide send = job.Send(rank);
  const PartsSide recv = job.Recv(rank);
  const Bytes input = job.Input(rank);
  Bytes output(recv.elements * e, std::byte{0xcd});
  const bool in_input = form == Form::kInPlace && send.many && !recv.many;
  const bool in_output = form == Form::kInPlace && recv.many && !send.many;
  if (in_output) std::copy(input.begin(), input.end(), output.begin() + recv.begin(rank) * e);
  const UserBytes in_buffer = memory.Input(input);
  const UserBytes out_buffer = memory.Output(output);
  const size_t out_begin = in_input ? send.begin(rank) * e : 0;
  PartsCall parts{job.call, in_buffer.data(), out_buffer.data(), nullptr, nullptr, nullptr, nullptr};
  parts.call.count = job.Own(rank);
  if (in_input) parts.out = in_buffer.data() + out_begin;
  if (in_output) parts.in = out_buffer.data() + recv.begin(rank) * e;
  parts.send_counts = job.CountsOf(send);
  parts.recv_counts = job.CountsOf(recv);
  parts.send_offsets = job.OffsetsOf(send);
  parts.recv_offsets = job.OffsetsOf(recv);
  const UserBytes& result = in_input ? in_buffer : out_buffer;
  Bytes expected = result.Read(out_begin, output.size());
  job.Overlay(rank, expected.data());
  if (form == Form::kAsync) {
    annulus_request_t* request = nullptr;
    std::vector<size_t> lent[4];
    // The arrays are read before the call returns.
    const size_t** arrays[] = {&parts.send_counts, &parts.send_offsets, &parts.recv_counts, &parts.recv_offsets};
    for (int i = 0; i < 4; ++i) {
      if (*arrays[i] != nullptr) lent[i].assign(*arrays[i], *arrays[i] + job.n);
      if (*arrays[i] != nullptr) *arrays[i] = lent[i].data();
    }
    ASSERT_EQ(SubmitPartsCall(comm, parts, &request), ANNULUS_OK);
    for (std::vector<size_t>& array : lent) array.assign(array.size(), 1u << 30);
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
    annulus_request_free(request);
  } else {
    ASSERT_EQ(RunPartsCall(comm, parts), ANNULUS_OK);
  }
  if (recv.used && !expected.empty()) {
    ASSERT_TRUE(SameBits(result.Read(out_begin, expected.size()), expected)) << "rank " << rank;
  }
}

class PartsTest : public LinksTest {};

TEST_P(PartsTest, EveryPartComesToItsPlaceInEveryForm) {
  ClusterConfig c = config();
  c.slice_bytes = 4096;
  c.small_bytes = 1024;
  // Empty, one element, around the one-hop limit, a slice and several.
  const size_t sizes[] = {0, 1, 255, 257, 1024, 1025, 9000};
  const Cluster cluster(c);
  cluster.Run([&](annulus_comm_t* comm, int rank) {
    for (CollectiveKind kind : kKinds) {
      for (Form form : {Form::kPacked, Form::kGaps, Form::kInPlace, Form::kAsync}) {
        if (form == Form::kInPlace && IsAlltoall(kind)) continue;
        for (unsigned seed = 0; seed < (kSanitized ? 3 : 8); ++seed) {
          PartsJob job{{}, {}, form != Form::kPacked, n()};
          job.call.kind = kind;
          job.call.type = seed % 2 == 0 ? DataType::kFloat32 : DataType::kBFloat16;
          job.call.root = static_cast<int>(seed) % n();
          job.counts = MakeCounts(kind, n(), job.call.root, seed, sizes);
          SCOPED_TRACE(testing::Message()
                       << KindName(kind) << ", form " << static_cast<int>(form) << ", seed " << seed);
          RunOne(comm, cluster.memory(rank), job, form, rank);
          if (HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST_P(PartsTest, LargePartsWithTheDefaultSettings) {
  constexpr size_t kLarge = kSanitized ? 70'001 : 300'001;  // More than a slice.
  const size_t sizes[] = {0, kLarge / 2, 1, kLarge};
  const Cluster cluster(config());
  cluster.Run([&](annulus_comm_t* comm, int rank) {
    for (CollectiveKind kind : kKinds) {
      PartsJob job{{}, {}, false, n()};
      job.call.kind = kind;
      job.counts = MakeCounts(kind, n(), 0, 3, sizes);
      RunOne(comm, cluster.memory(rank), job, Form::kPacked, rank);
      if (HasFatalFailure()) return;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Links, PartsTest, OverLinks(1, 2, 3, 5), LinksName);
INSTANTIATE_TEST_SUITE_P(SimLinks, PartsTest, OverSimLinks(3), LinksName);
INSTANTIATE_TEST_SUITE_P(MixedLinks, PartsTest, OverMixedLinks(2), LinksName);

TEST(PartsArgumentsTest, WrongLayoutsAreRefusedAndNamed) {
  ClusterConfig config;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    float in[16] = {};
    float out[16] = {};
    const size_t counts[] = {4, 4};
    const size_t overlapping[] = {0, 3};
    const size_t huge[] = {4, SIZE_MAX / 2};
    const auto allgatherv = [&](const size_t* c, const size_t* offsets, size_t own) {
      return annulus_allgatherv(comm, in, own, out, c, offsets, ANNULUS_FLOAT32);
    };
    EXPECT_EQ(allgatherv(nullptr, nullptr, 4), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(LastMessage(comm), "recvcounts is null");
    EXPECT_EQ(allgatherv(counts, overlapping, 4), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(LastMessage(comm), "two parts of recvbuf overlap at element 3; see recvoffsets");
    EXPECT_EQ(allgatherv(huge, nullptr, 4), ANNULUS_INVALID_ARGUMENT);
    EXPECT_NE(LastMessage(comm).find("recvcounts[1] is "), std::string::npos) << LastMessage(comm);
    EXPECT_EQ(allgatherv(counts, nullptr, 5), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(LastMessage(comm),
              "recvcounts[" + std::to_string(rank) + "] is 4, but sendcount, for the same part, is 5");
    EXPECT_EQ(annulus_alltoall(comm, in, in, 4, ANNULUS_FLOAT32), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(LastMessage(comm), "sendbuf and recvbuf of alltoall overlap; it has no in-place form");
    EXPECT_EQ(annulus_gather(comm, in, out, 4, ANNULUS_FLOAT32, 2), ANNULUS_INVALID_ARGUMENT);
    EXPECT_EQ(LastMessage(comm), "root is 2; allowed: 0 to 1");
    EXPECT_EQ(allgatherv(counts, nullptr, 4), ANNULUS_OK) << "the communicator stays usable";
  });
}

TEST(PartsArgumentsTest, LayoutsThatOnlyTheRootUsesMayPointAnywhereElsewhere) {
  ClusterConfig config;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    float in[4] = {};
    float out[8] = {};
    const size_t counts[] = {4, 4};
    const size_t* const nowhere = reinterpret_cast<const size_t*>(8);
    annulus_request_t* request = nullptr;
    ASSERT_EQ(annulus_gatherv_async(comm, in, 4, out, rank == 0 ? counts : nowhere, rank == 0 ? nullptr : nowhere,
                                    ANNULUS_FLOAT32, 0, &request),
              ANNULUS_OK);
    EXPECT_EQ(annulus_request_wait(request, -1), ANNULUS_OK);
    annulus_request_free(request);
    EXPECT_EQ(annulus_gatherv(comm, in, 4, out, rank == 0 ? counts : nowhere, rank == 0 ? nullptr : nowhere,
                              ANNULUS_FLOAT32, 0),
              ANNULUS_OK);
  });
}

TEST(PartsArgumentsTest, RanksThatDisagreeAboutAPartGetOneVerdict) {
  ClusterConfig config;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    float in[16] = {};
    float out[16] = {};
    const size_t send[] = {4, 4};
    const size_t recv[] = {4, rank == 0 ? size_t{5} : size_t{4}};
    annulus_status_t status = annulus_alltoallv(comm, in, send, nullptr, out, recv, nullptr, ANNULUS_FLOAT32);
    // A rank that had all it needed learns of it in the next call.
    if (rank == 1 && status == ANNULUS_OK) status = annulus_barrier(comm);
    EXPECT_EQ(status, ANNULUS_MISMATCH);
    EXPECT_NE(LastMessage(comm).find("part of 4 elements, for which rank 0 has 5"), std::string::npos)
        << LastMessage(comm);
  });
}

TEST(PartsArgumentsTest, TheRankThatGivesOtherCountsThanTheOthersIsToBlame) {
  const size_t usual[] = {4, 5, 6};
  const size_t other_order[] = {4, 6, 5};
  const size_t other_sum[] = {4, 5, 7};
  for (const int odd : {0, 1, 2}) {
    for (const size_t* const counts : {other_order, other_sum}) {
      ClusterConfig config;
      config.nranks = 3;
      std::barrier joined(config.nranks);  // Else some might hear of it before they have joined.
      Cluster(config).Run([&](annulus_comm_t* comm, int rank) {
        float in[16] = {};
        float out[16] = {};
        const size_t* const own = rank == odd ? counts : usual;
        joined.arrive_and_wait();
        annulus_status_t status = annulus_allgatherv(comm, in, own[rank], out, own, nullptr, ANNULUS_FLOAT32);
        if (status == ANNULUS_OK) status = annulus_barrier(comm);
        EXPECT_EQ(status, ANNULUS_MISMATCH);
        const std::string expected =
            "rank " + std::to_string(odd) + " called allgatherv #1 with " +
            (counts == other_sum ? "counts for 16 elements, the others with counts for 15 elements"
                                 : "other counts than the others, though of the same sum");
        EXPECT_EQ(LastMessage(comm), expected);
      });
    }
  }
}

TEST(PartsArgumentsTest, WithoutAMeshDirectKindsSayWhichSettingHelps) {
  ClusterConfig config;
  config.nranks = 17;
  config.mesh_ranks = 16;
  Cluster(config).Run([](annulus_comm_t* comm, int) {
    float in[17] = {};
    float out[17] = {};
    EXPECT_EQ(annulus_alltoall(comm, in, out, 1, ANNULUS_FLOAT32), ANNULUS_UNSUPPORTED);
    EXPECT_NE(LastMessage(comm).find("ANNULUS_MESH_RANKS is 16"), std::string::npos) << LastMessage(comm);
    EXPECT_EQ(annulus_allreduce(comm, in, out, 1, ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK);
  });
}

TEST(PartsArgumentsTest, MoreRanksThanTheOneHopExchangeTakesStillHaveAMesh) {
  ClusterConfig config;
  config.nranks = 18;
  Cluster(config).Run([](annulus_comm_t* comm, int rank) {
    int in[18];
    int out[18];
    std::iota(in, in + 18, 100 * rank);
    ASSERT_EQ(annulus_alltoall(comm, in, out, 1, ANNULUS_INT32), ANNULUS_OK);
    for (int from = 0; from < 18; ++from) EXPECT_EQ(out[from], 100 * from + rank);
  });
}

}  // namespace
}  // namespace annulus
