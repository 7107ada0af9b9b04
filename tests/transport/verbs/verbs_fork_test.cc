// Forks of a process that has verbs links: on kernels that do not copy a device's pages for a child, the child has no
// slots; it has what the user registered, on all kernels. Children that are forked here show it.
#include "transport/verbs/device/verbs_fork.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "tests/transport/contract/contract_link.h"
#include "tests/transport/verbs/registered_link.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/transport.h"
#include "transport/verbs/verbs.h"

namespace annulus {
namespace {

// Whether a child that is forked now has the byte at `data`.
bool ChildHas(const std::byte* data) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  // The kernel reads there and finds nothing, where the child would end by a signal.
  if (child == 0) _exit(write(ends[1], data, 1) == 1 ? 0 : 1);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  close(ends[0]);
  close(ends[1]);
  return WEXITSTATUS(status) == 0;
}

size_t CountOf(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

class VerbsForkTest : public RegisteredLinkTest {
 protected:
  void SetUp() override {
    RegisteredLinkTest::SetUp();
    memory_ = Allocate();
    ASSERT_NE(memory_, nullptr);
  }
  void TearDown() override {
    RegisteredLinkTest::TearDown();
    Free(memory_);
  }

  // Opens a link over that library, on two devices, and lets a device know the registered memory.
  void OpenAndSend(const VerbsApi* api) {
    const auto make = [api](TransportConfig config) {
      config.settings.Set("verbs_device", std::string("sim0,sim1"));
      return CreateVerbsTransportOver(api, "", config);
    };
    link_.reset();
    link_ = TransportLink::Open(make, nullptr, {.slot_bytes = kSlotBytes, .slots = kSlots});
    ASSERT_NE(link_, nullptr);
    const Recv* const recv = Expect();
    const Send* const send = Post(memory_, kSlotBytes);
    ASSERT_TRUE(Drive([&] { return recv->code == Code::kOk && send->code == Code::kOk; }));
    ASSERT_EQ(std::memcmp(recv->data, memory_, kSlotBytes), 0);
    received_ = recv->data;
  }
  bool ChildHasSlots() { return ChildHas(received_) && ChildHas(received_ + kSlotBytes - 1); }
  bool ChildHasMemory() { return ChildHas(memory_) && ChildHas(memory_ + kBytes - 1); }

  std::byte* memory_ = nullptr;
  const std::byte* received_ = nullptr;
};

TEST_F(VerbsForkTest, AKernelThatCopiesPagesForChildrenNeedsNothing) {
  SimulatedVerbs::SetMachine({.devices = 2, .copies_on_fork = true});
  OpenAndSend(SimulatedVerbs::Api());
  EXPECT_TRUE(ChildHasSlots());
  EXPECT_TRUE(ChildHasMemory());
}

TEST_F(VerbsForkTest, OnAnOlderKernelChildrenHaveNoSlotsButAllThatTheUserRegistered) {
  SimulatedVerbs::SetMachine({.devices = 2, .copies_on_fork = false});
  const uint64_t before = SimulatedVerbs::Counts().unsafe_regions;
  OpenAndSend(SimulatedVerbs::Api());
  EXPECT_EQ(SimulatedVerbs::Counts().unsafe_regions, before);
  EXPECT_FALSE(ChildHas(received_));
  EXPECT_FALSE(ChildHas(received_ + kSlotBytes - 1));
  EXPECT_TRUE(ChildHasMemory());
  // And once more, with a library that is ready.
  OpenAndSend(SimulatedVerbs::Api());
  EXPECT_EQ(SimulatedVerbs::Counts().unsafe_regions, before);
  EXPECT_FALSE(ChildHasSlots());
}

TEST_F(VerbsForkTest, ALibraryThatCannotTellWhetherItIsNeededIsAskedForIt) {
  SimulatedVerbs::SetMachine({.devices = 2, .copies_on_fork = false});
  VerbsApi old = *SimulatedVerbs::Api();
  old.is_fork_initialized = nullptr;
  OpenAndSend(&old);
  EXPECT_FALSE(ChildHasSlots());
  EXPECT_TRUE(ChildHasMemory());
  link_.reset();
}

TEST_F(VerbsForkTest, WhatTheLibraryCannotDoIsLoggedOnceByEachRankAndTheLinksWork) {
  SimulatedVerbs::SetMachine({.devices = 2, .copies_on_fork = false});
  const VerbsApi* const api = SimulatedVerbs::Api();
  // Others have registered memory before.
  int count = 0;
  ibv_device** const list = api->get_device_list(&count);
  ibv_context* const context = api->open_device(list[0]);
  ibv_pd* const domain = api->alloc_pd(context);
  std::array<std::byte, 64> others{};
  ibv_mr* const region = api->reg_mr(domain, others.data(), others.size(), 0);
  const uint64_t before = SimulatedVerbs::Counts().unsafe_regions;

  testing::internal::CaptureStderr();
  OpenAndSend(api);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(CountOf(log, "ibv_fork_init, which prevents that, failed: Invalid argument"), 2u) << log;
  EXPECT_NE(log.find("RDMAV_FORK_SAFE=1"), std::string::npos) << log;
  EXPECT_GT(SimulatedVerbs::Counts().unsafe_regions, before);
  EXPECT_TRUE(ChildHasSlots());

  api->dereg_mr(region);
  api->dealloc_pd(domain);
  api->close_device(context);
  api->free_device_list(list);
}

}  // namespace
}  // namespace annulus
