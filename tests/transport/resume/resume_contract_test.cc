// The contract suite on links that go on over TCP when their device fails: while nothing fails, and once they have gone
// on.
#include <gtest/gtest.h>

#include "tests/transport/contract/contract.h"
#include "tests/transport/resume/resuming_transport.h"
#include "tests/transport/verbs/no_mistakes.h"
#include "tests/verbs/provider/simulated_verbs.h"

namespace annulus {
namespace {

constexpr int kReconnectMs = 20'000;

std::unique_ptr<Transport> MakeSound(TransportConfig config) {
  SimulatedVerbs::SetMachine({});
  return std::make_unique<ResumingTransport>(std::move(config), kReconnectMs);
}

TransportConfig OverTwoRails(TransportConfig config) {
  SimulatedVerbs::SetMachine({.devices = 2});
  config.settings.Set("verbs_device", std::string("sim0,sim1"));
  return config;
}
std::unique_ptr<Transport> MakeTwoRails(TransportConfig config) {
  return std::make_unique<ResumingTransport>(OverTwoRails(std::move(config)), kReconnectMs);
}

std::unique_ptr<Transport> MakeReads(TransportConfig config) {
  config.settings.Set("verbs_read_bytes", int64_t{1000});
  return MakeTwoRails(std::move(config));
}

void AwaitReconnect(Endpoint* endpoint) {
  const Deadline deadline = DeadlineAfter(kContractPatience);
  while (endpoint->stats().reconnects == 0 && Now() < deadline) {
    bool moved = false;
    ASSERT_TRUE(endpoint->Progress(&moved).ok());
    if (!moved) sched_yield();
  }
  EXPECT_EQ(endpoint->stats().reconnects, 1u);
}

// Both ends go on over TCP before the suite begins.
std::unique_ptr<Transport> MakeGoneOn(TransportConfig config) {
  SimulatedVerbs::SetMachine({});
  return std::make_unique<ResumingTransport>(std::move(config), kReconnectMs, [](Endpoint* endpoint) {
    SimulatedVerbs::FailPairs();
    AwaitReconnect(endpoint);
  });
}
}  // namespace

INSTANTIATE_TEST_SUITE_P(
    Resume, EndpointContract,
    FirstUnderThreads(2, {TransportBackend("Reads", MakeReads), TransportBackend("GoneOn", MakeGoneOn),
                          TransportBackend("Sound", MakeSound), TransportBackend("TwoRails", MakeTwoRails)}),
    BackendName);

}  // namespace annulus
