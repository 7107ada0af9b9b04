// Whole jobs over verbs in which each request fails in turn: the ranks get the same bits, there is no verdict, and
// nothing comes twice.
#include <annulus.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "collectives/comm/communicator.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/soak/rounds.h"
#include "tests/transport/verbs/verbs_job.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/memory/memory.h"
#include "transport/tcp/tcp.h"

namespace annulus {
namespace {

struct Story {
  const char* name;
  int nranks = 2;
  const char* algorithm = "auto";
  std::vector<size_t> counts;  // Counts of the allreduces, in elements.
  // Of a broadcast before them, in which rank 0 only sends, as few elements as are copied at once: when they are lost
  // it may be inside the next call, which does not use that link.
  size_t broadcast_count = 0;
  bool registered = false;  // The data lies in memory that the device reads.
  std::string ports = "";   // As in ANNULUS_VERBS_DEVICE.
  int64_t read_bytes = 0;   // As in ANNULUS_VERBS_READ_BYTES.
};

// What a job did.
struct Outcome {
  std::atomic<uint64_t> reconnects = 0;
  std::atomic<uint64_t> bytes_sent_again = 0;
};

class ResumeJobTest : public testing::TestWithParam<Story> {
 protected:
  ~ResumeJobTest() override {
    SimulatedVerbs::FailAfter(UINT64_MAX, IBV_WC_SUCCESS);
    SimulatedVerbs::SetMachine({});
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_EQ(counts.not_ready, 0u);
    EXPECT_EQ(counts.overruns, 0u);
    EXPECT_EQ(counts.objects, 0u);
  }

  // Runs `body` on a thread for each rank. Every link is between hosts, as far as the setting is concerned.
  template <class Body>
  static void RunJob(const Story& story, const ClusterConfig& config, const MemoryRegistry* memory, Body body) {
    const TransportInfo verbs = SimulatedVerbsInfo();
    const TransportInfo* const list[] = {&verbs, &kTcpTransport};
    SimulatedVerbs::SetMachine({.devices = 2});
    const auto before = [&story](int, Options* options) {
      options->verbs_device = story.ports;
      options->verbs_read_bytes = story.read_bytes;
    };
    VerbsJob{config, list, memory, before}.Run(body);
  }

  static ClusterConfig Config(const Story& story, int reconnect_ms) {
    ClusterConfig config;
    config.nranks = story.nranks;
    config.algorithm = story.algorithm;
    config.transport = "verbs";
    config.reconnect_ms = reconnect_ms;
    config.slice_bytes = 4096;
    return config;
  }

  static void Broadcast(const std::unique_ptr<Communicator>& comm, size_t count) {
    std::vector<int32_t> data(count, comm->rank() == 0 ? 5 : 6);
    EXPECT_EQ(annulus_broadcast(Handle(comm), data.data(), data.data(), count, ANNULUS_INT32, 0), ANNULUS_OK)
        << LastMessage(Handle(comm));
    EXPECT_EQ(data, std::vector<int32_t>(count, 5));
  }

  // Calls in place, and a barrier. Request number `fail_at`, counted from the first call, fails. Returns how many
  // requests there were in all.
  static uint64_t Run(const Story& story, uint64_t fail_at, Outcome* outcome, int reconnect_ms = 20'000) {
    const uint64_t before = SimulatedVerbs::Counts().requests;
    MemoryRegistry registry;
    std::atomic<int> ready = 0;
    RunJob(story, Config(story, reconnect_ms), &registry, [&](const std::unique_ptr<Communicator>& comm) {
      if (++ready == story.nranks) SimulatedVerbs::FailAfter(fail_at, IBV_WC_RETRY_EXC_ERR);
      const size_t most = *std::max_element(story.counts.begin(), story.counts.end());
      std::vector<int32_t> ordinary(most);
      void* memory = ordinary.data();
      if (story.registered) {
        ASSERT_TRUE(registry.Allocate(most * sizeof(int32_t), &memory).ok());
      }
      auto* const data = static_cast<int32_t*>(memory);
      if (story.broadcast_count > 0) Broadcast(comm, story.broadcast_count);
      for (const size_t count : story.counts) {
        for (size_t i = 0; i < count; ++i) data[i] = static_cast<int32_t>(i * 7 + static_cast<size_t>(comm->rank()));
        ASSERT_EQ(annulus_allreduce(Handle(comm), data, data, count, ANNULUS_INT32, ANNULUS_SUM), ANNULUS_OK)
            << LastMessage(Handle(comm));
        const int nranks = story.nranks;
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(data[i], static_cast<int32_t>(i) * 7 * nranks + nranks * (nranks - 1) / 2) << i << " of " << count;
          data[i] = -1;  // It is the user's again.
        }
      }
      EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK) << LastMessage(Handle(comm));
      annulus_transport_counters_t counters{};
      counters.struct_bytes = sizeof counters;
      ASSERT_EQ(annulus_comm_transport_counters(Handle(comm), 0, &counters), ANNULUS_OK);
      EXPECT_STREQ(counters.transport, "verbs");
      outcome->reconnects += counters.reconnects;
      outcome->bytes_sent_again += counters.bytes_sent_again;
      if (story.registered) {
        EXPECT_TRUE(registry.Free(memory).ok());
      }
    });
    SimulatedVerbs::FailAfter(UINT64_MAX, IBV_WC_SUCCESS);
    return SimulatedVerbs::Counts().requests - before;
  }
};

TEST_P(ResumeJobTest, FailingAtEveryRequest) {
  const Story& story = GetParam();
  Outcome sound;
  const uint64_t requests_without = Run(story, UINT64_MAX, &sound, 0);
  const uint64_t requests = Run(story, UINT64_MAX, &sound);
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(sound.reconnects, 0u);
  EXPECT_EQ(sound.bytes_sent_again, 0u);
  const uint64_t cases = Rounds(std::min<uint64_t>(50, requests), requests);
  Outcome outcome;
  for (uint64_t repeat = 0; repeat < Rounds(1, 20); ++repeat) {
    for (uint64_t i = 0; i < cases; ++i) {
      const uint64_t fail_at = i * requests / cases;
      SimulatedVerbs::Seed(repeat * 1000 + i);
      SCOPED_TRACE("request " + std::to_string(fail_at) + " of " + std::to_string(requests) + ", repeat " +
                   std::to_string(repeat));
      Run(story, fail_at, &outcome);
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GT(outcome.reconnects, cases) << "two for each failure";
  EXPECT_GT(outcome.bytes_sent_again, 0u);
  std::printf("%llu of %llu requests (%llu without resuming) failed, %llu reconnects, %llu bytes sent again\n",
              static_cast<unsigned long long>(cases), static_cast<unsigned long long>(requests),
              static_cast<unsigned long long>(requests_without), static_cast<unsigned long long>(outcome.reconnects),
              static_cast<unsigned long long>(outcome.bytes_sent_again));
}

INSTANTIATE_TEST_SUITE_P(
    Stories, ResumeJobTest,
    testing::Values(
        Story{.name = "SmallOfTwo", .counts = {1, 10, 40, 1}},
        Story{.name = "OneHopOfThree", .nranks = 3, .algorithm = "one_hop", .counts = {300, 3, 300}},
        Story{.name = "RingOfTwo", .algorithm = "ring", .counts = {20'000, 5000}},
        Story{.name = "RingOfThree", .nranks = 3, .algorithm = "ring", .counts = {20'000, 5000}},
        Story{.name = "OneHopAndThenRingOfFour", .nranks = 4, .counts = {5000}, .broadcast_count = 30},
        Story{.name = "SmallOfTwoOverTwoRails", .counts = {1, 10, 40, 1}, .ports = "sim0,sim1"},
        Story{.name = "RingOfThreeOverTwoRails",
              .nranks = 3,
              .algorithm = "ring",
              .counts = {20'000, 5000},
              .ports = "sim0,sim1"},
        Story{.name = "RegisteredOfTwoOverTwoRails",
              .algorithm = "ring",
              .counts = {20'000},
              .registered = true,
              .ports = "sim0,sim1"},
        Story{.name = "RegisteredOfTwo", .algorithm = "ring", .counts = {20'000}, .registered = true},
        Story{.name = "RegisteredOfThree", .nranks = 3, .algorithm = "ring", .counts = {20'000}, .registered = true},
        Story{.name = "ReadOfTwo", .algorithm = "ring", .counts = {20'000}, .registered = true, .read_bytes = 1000},
        Story{.name = "ReadOfThreeOverTwoRails",
              .nranks = 3,
              .algorithm = "ring",
              .counts = {20'000},
              .registered = true,
              .ports = "sim0,sim1",
              .read_bytes = 1000}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace annulus
