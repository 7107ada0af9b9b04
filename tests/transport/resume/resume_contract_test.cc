// The contract suite on links that go on over TCP when their device fails: while nothing fails, and once they have gone
// on.
#include <gtest/gtest.h>

#include "tests/transport/contract/contract.h"
#include "tests/transport/resume/resuming_transport.h"
#include "tests/verbs/provider/simulated_verbs.h"

namespace annulus {
namespace {

constexpr int kReconnectMs = 20'000;

std::unique_ptr<Transport> MakeSound(TransportConfig config) {
  return std::make_unique<ResumingTransport>(std::move(config), kReconnectMs);
}

// Both ends go on over TCP before the suite begins.
std::unique_ptr<Transport> MakeGoneOn(TransportConfig config) {
  return std::make_unique<ResumingTransport>(std::move(config), kReconnectMs, [](Endpoint* endpoint) {
    SimulatedVerbs::FailPairs();
    const Deadline deadline = DeadlineAfter(kContractPatience);
    while (endpoint->stats().reconnects == 0 && Now() < deadline) {
      bool moved = false;
      ASSERT_TRUE(endpoint->Progress(&moved).ok());
      if (!moved) sched_yield();
    }
    EXPECT_EQ(endpoint->stats().reconnects, 1u);
  });
}

class NoMistakes : public ::testing::Environment {
 public:
  void TearDown() override {
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_GT(counts.written_bytes, 0u);
    EXPECT_EQ(counts.not_ready, 0u) << "a message found no receive: credits are wrong";
    EXPECT_EQ(counts.overruns, 0u);
    EXPECT_EQ(counts.refused_posts, 0u);
    EXPECT_EQ(counts.busy, 0u) << "something was destroyed before what uses it";
    EXPECT_EQ(counts.objects, 0u) << "something was not given back to the provider";
  }
};

const ::testing::Environment* const kNoMistakes = ::testing::AddGlobalTestEnvironment(new NoMistakes);

}  // namespace

INSTANTIATE_TEST_SUITE_P(Resume, EndpointContract,
                         ::testing::Values(TransportBackend("Sound", MakeSound),
                                           TransportBackend("GoneOn", MakeGoneOn)),
                         BackendName);

}  // namespace annulus
