// What the links of a communicator share: the completion queue, before a sleep, and how long a device may try.
#include "transport/verbs/device/verbs_hub.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <memory>
#include <utility>

#include "base/clock.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/reactor.h"
#include "transport/verbs/device/verbs_device.h"
#include "transport/verbs/rail/verbs_queue_pair.h"

namespace annulus {
namespace {

class CountingLink final : public VerbsLink {
 public:
  void OnCompletion(const ibv_wc&, VerbsRequest, uint32_t) override { ++taken; }
  int taken = 0;
};

// Several links sleep together: each arms the queue that they share. Completions that were there before the first
// arming, and more than one poll takes, raise no event; so nobody may sleep until all of them are taken.
TEST(VerbsHubTest, NobodySleepsWhileCompletionsAreLeft) {
  constexpr int kCompletions = 100;
  std::unique_ptr<VerbsDevice> device;
  ASSERT_TRUE(VerbsDevice::Find(SimulatedVerbs::Api(), {}, &device).ok());
  Reactor reactor;
  VerbsHub hub(std::move(device), &reactor);
  ASSERT_TRUE(hub.Open(kCompletions).ok());
  CountingLink link;
  const uint32_t number = hub.Add(&link);
  VerbsQueuePair pair(&hub, number, kCompletions, {});
  ASSERT_TRUE(pair.Create().ok());
  std::byte cell[kVerbsCellBytes];
  for (uint32_t i = 0; i < kCompletions; ++i) {
    VerbsQueuePair::Receive receive;
    pair.MakeReceive(i, cell, 0, &receive);
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(pair.PostReceives(&receive.request, &bad), 0);
  }
  SimulatedVerbs::FailPairs();
  while (SimulatedVerbs::Counts().waiting > 0) sched_yield();
  int refusals = 0;
  while (!hub.Arm()) ++refusals;
  EXPECT_EQ(link.taken, kCompletions);
  EXPECT_GE(refusals, 1);
  hub.Remove(number);
}

TEST(VerbsHubTest, ADeviceTriesAsLongAsItsSettingsSay) {
  EXPECT_EQ(VerbsPath{}.Patience(), 7 * 4096 * Nanoseconds{1 << 14});
  const VerbsPath longest{.timeout = 22, .retries = 6};
  EXPECT_GT(longest.Patience(), 120 * kSecond);
}

}  // namespace
}  // namespace annulus
