// Jobs whose devices run out of receives, of room for completions, or of queues that can be polled: they end with one
// verdict for all ranks, which names a rank, the device and the cause, or go on over TCP.
#include <annulus.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "collectives/comm/communicator.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/transport/verbs/verbs_job.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/device/verbs_api.h"

namespace annulus {
namespace {

constexpr char kOverflowed[] = "its completion queue overflowed";

class VerbsExhaustedJobTest : public ::testing::Test {
 protected:
  ~VerbsExhaustedJobTest() override {
    SimulatedVerbs::SetMachine({});
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_EQ(counts.busy, 0u) << "something was destroyed before what uses it";
    EXPECT_EQ(counts.objects, 0u) << "something was not given back to the provider";
  }
};

// Runs three ranks over those transports, whose devices run out once all have begun.
template <class Body>
void RunJob(const TransportList& transports, const SimulatedMachine& machine, Body body) {
  ClusterConfig config;
  config.nranks = 3;
  config.transport = "verbs";
  config.slice_bytes = 4096;
  config.reconnect_ms = 20'000;
  std::atomic<int> begun = 0;
  VerbsJob{config, transports}.Run([&](const std::unique_ptr<Communicator>& comm) {
    const int rank = comm->rank();
    int32_t word = 0;
    annulus_status_t met = ANNULUS_OK;
    if (rank == 0) met = annulus_send(Handle(comm), &word, 1, ANNULUS_INT32, 1);
    if (rank == 1) met = annulus_recv(Handle(comm), &word, 1, ANNULUS_INT32, 0);
    ASSERT_EQ(met, ANNULUS_OK) << LastMessage(Handle(comm));
    ASSERT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK) << LastMessage(Handle(comm));
    if (++begun == config.nranks) SimulatedVerbs::SetMachine(machine);
    body(comm);
  });
  SimulatedVerbs::SetMachine({});
}

annulus_status_t Sum(const std::unique_ptr<Communicator>& comm, std::vector<int32_t>* ones) {
  ones->assign(100'000, 1);
  return annulus_allreduce(Handle(comm), ones->data(), ones->data(), ones->size(), ANNULUS_INT32, ANNULUS_SUM);
}

// Runs `call` on each rank until it fails, over verbs alone. All ranks get the same verdict, with one of `texts`, in
// time.
template <class Call>
void ExpectVerdict(const SimulatedMachine& machine, const std::vector<std::string>& texts, Call call) {
  const TransportInfo verbs = SimulatedVerbsInfo();
  const TransportInfo* const list[] = {&verbs};
  std::array<std::string, 3> messages;
  const Nanoseconds begin = Now();
  RunJob(list, machine, [&](const auto& comm) {
    annulus_status_t status = ANNULUS_OK;
    for (int i = 0; i < 100 && status == ANNULUS_OK; ++i) status = call(comm);
    EXPECT_NE(status, ANNULUS_OK);
    messages[static_cast<size_t>(comm->rank())] = LastMessage(Handle(comm));
  });
  EXPECT_LT(Now() - begin, 30 * kSecond) << "half of the deadline of a call";
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_EQ(messages[0], messages[2]);
  const auto says = [&](const std::string& part) { return messages[0].find(part) != std::string::npos; };
  EXPECT_TRUE(std::ranges::any_of(texts, says)) << messages[0];
  EXPECT_TRUE(says("rank ") && says("sim0, port 1")) << messages[0];
}

// The end that reports first has the verdict. Rank 0's device finds no receive for its message, or rank 1's finds none
// for its word that a slot is free again; in the second case rank 0's may only find that the other no longer answers.
TEST_F(VerbsExhaustedJobTest, AReceiverWithoutReceivesEndsAJobWithOneVerdict) {
  const auto call = [](const std::unique_ptr<Communicator>& comm) {
    std::vector<int32_t> data(1000);
    const int rank = comm->rank();
    if (rank == 0) return annulus_send(Handle(comm), data.data(), data.size(), ANNULUS_INT32, 1);
    return annulus_recv(Handle(comm), data.data(), data.size(), ANNULUS_INT32, rank - 1);
  };
  ExpectVerdict({.hides_receives = true},
                {VerbsStatusText(IBV_WC_RNR_RETRY_EXC_ERR), VerbsStatusText(IBV_WC_RETRY_EXC_ERR)}, call);
  EXPECT_GT(SimulatedVerbs::Counts().not_ready, 0u);
}

TEST_F(VerbsExhaustedJobTest, QueuesThatFailEndAJobWithOneVerdict) {
  std::array<std::vector<int32_t>, 3> data;
  const auto call = [&data](const std::unique_ptr<Communicator>& comm) {
    return Sum(comm, &data[static_cast<size_t>(comm->rank())]);
  };
  ExpectVerdict({.queue_room = 0}, {kOverflowed}, call);
  ExpectVerdict({.poll_error = -1}, {"waiting for completions"}, call);
}

// The links tell their ranks why, and in words where it is the other end's device that failed.
TEST_F(VerbsExhaustedJobTest, AJobGoesOnOverTcpWhereItMay) {
  const TransportInfo verbs = SimulatedVerbsInfo();
  const TransportInfo* const list[] = {&verbs, &kTcpTransport};
  const std::pair<SimulatedMachine, std::string> troubles[] = {
      {{.hides_receives = true}, VerbsStatusText(IBV_WC_RNR_RETRY_EXC_ERR)},
      {{.queue_room = 0}, kOverflowed},
      {{.poll_error = -1}, "waiting for completions"},
  };
  for (const auto& [machine, text] : troubles) {
    SCOPED_TRACE(text);
    testing::internal::CaptureStderr();
    RunJob(list, machine, [](const std::unique_ptr<Communicator>& comm) {
      std::vector<int32_t> data;
      for (int i = 0; i < 10; ++i) {
        ASSERT_EQ(Sum(comm, &data), ANNULUS_OK) << LastMessage(Handle(comm));
        ASSERT_EQ(data, std::vector<int32_t>(data.size(), 3));
      }
      EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK) << LastMessage(Handle(comm));
      annulus_transport_counters_t counters{};
      counters.struct_bytes = sizeof counters;
      ASSERT_EQ(annulus_comm_transport_counters(Handle(comm), 0, &counters), ANNULUS_OK);
      EXPECT_GT(counters.reconnects, 0u);
    });
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("in place of verbs sim0, port 1"), std::string::npos) << log;
    EXPECT_NE(log.find(text), std::string::npos) << log;
    EXPECT_EQ(log.find("stopped: success"), std::string::npos) << log;
  }
}

}  // namespace
}  // namespace annulus
