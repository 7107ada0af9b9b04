// Jobs over verbs whose buffers lie in the memory of a GPU, and what happens to them when something fails: links go on,
// copies and flushes fail, devices are gone, communicators are destroyed, memory is freed.
#include <annulus.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collectives/comm/communicator.h"
#include "collectives/reduce/memory_domains.h"
#include "cuda_kernels/driver/driver.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/cuda/cuda_test_device.h"
#include "tests/cuda/fake_driver/fake_cuda.h"
#include "tests/soak/rounds.h"
#include "tests/transport/verbs/registered_link.h"
#include "tests/transport/verbs/verbs_gpu_job.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/transport.h"

namespace annulus {
namespace {

class VerbsGpuFaultsTest : public VerbsGpuJob {};

// A stream that waits for a word of the program's, and behind which the default streams wait.
class GatedStream {
 public:
  GatedStream() : driver_(cuda::OpenFakeCuda()) {
    const cuda::Driver& driver = *driver_;
    void* pinned = nullptr;
    driver->DeviceGet(&device_, 0);
    driver->DevicePrimaryCtxRetain(&context_, device_);
    const cuda::ScopedContext scope(driver, context_);
    EXPECT_EQ(driver->MemHostAlloc(&pinned, sizeof(uint32_t), cuda::kHostAllocPortable), cuda::Result::kSuccess);
    gate_ = static_cast<uint32_t*>(pinned);
    *gate_ = 0;
    EXPECT_EQ(driver->StreamCreateWithPriority(&stream_, 0, 0), cuda::Result::kSuccess);
    EXPECT_EQ(driver->StreamWaitValue32(stream_, cuda::ToDevice(gate_), 1, cuda::kWaitValueReached),
              cuda::Result::kSuccess);
  }
  ~GatedStream() {
    const cuda::Driver& driver = *driver_;
    __atomic_store_n(gate_, 1, __ATOMIC_RELEASE);
    {
      const cuda::ScopedContext scope(driver, context_);
      driver->StreamSynchronize(stream_);
      driver->StreamDestroy(stream_);
      driver->MemFreeHost(gate_);
    }
    driver->DevicePrimaryCtxRelease(device_);
  }

 private:
  const std::unique_ptr<cuda::Driver> driver_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
  uint32_t* gate_ = nullptr;
};

// What a link sends again when it goes on over TCP is copied first.
TEST_F(VerbsGpuFaultsTest, LinksGoOnOverTcp) {
  const uint64_t failures = Rounds(15, 500);
  for (const int nranks : {2, 3}) {
    const auto calls = [this](const std::unique_ptr<Communicator>& comm) {
      Broadcast(comm);
      Allreduce(comm);
    };
    const SimulatedCounts before = SimulatedVerbs::Counts();
    Run(nranks, calls, 20'000);
    const SimulatedCounts after = SimulatedVerbs::Counts();
    EXPECT_GT(after.read_from_gpus, before.read_from_gpus);
    const uint64_t requests = after.requests - before.requests;
    std::atomic<uint64_t> again = 0;
    for (uint64_t i = 0; i < failures; ++i) {
      SCOPED_TRACE("failure " + std::to_string(i) + " of ranks " + std::to_string(nranks));
      SimulatedVerbs::Seed(i);
      SimulatedVerbs::FailAfter((2 * i + 1) * requests / (2 * failures), IBV_WC_RETRY_EXC_ERR);
      const auto count = [&](const std::unique_ptr<Communicator>& comm) {
        calls(comm);
        again += SentAgain(comm);
      };
      Run(nranks, count, 20'000);
      SimulatedVerbs::FailAfter(UINT64_MAX, IBV_WC_SUCCESS);
      ASSERT_FALSE(HasFailure());
    }
    EXPECT_GT(again, 0u);
  }
  SimulatedVerbs::Seed(1);
}

// One rail fails, and slices of both are copied.
TEST_F(VerbsGpuFaultsTest, LinksOfTwoRailsGoOnOverTcp) {
  devices_ = {"sim0,sim1", "sim0,sim1"};
  std::atomic<uint64_t> again = 0;
  for (uint64_t i = 0; i < Rounds(10, 200); ++i) {
    SCOPED_TRACE("failure " + std::to_string(i));
    SimulatedVerbs::SetMachine({.devices = 2});
    SimulatedVerbs::Seed(i);
    SimulatedVerbs::FailAfter(2 * i + 1, IBV_WC_RETRY_EXC_ERR);
    const auto body = [&](const std::unique_ptr<Communicator>& comm) {
      for (int round = 0; round < 3; ++round) Broadcast(comm);
      Allreduce(comm);
      again += SentAgain(comm);
    };
    Run(2, body, 20'000);
    SimulatedVerbs::FailAfter(UINT64_MAX, IBV_WC_SUCCESS);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(again, 0u);
  SimulatedVerbs::Seed(1);
}

// Whoever drives a link may be the one for whom a stream waits.
TEST_F(VerbsGpuFaultsTest, LinksThatGoOnPinNothingAndWaitForNoStream) {
  std::atomic<uint64_t> again = 0;
  for (uint64_t i = 0; i < Rounds(10, 100); ++i) {
    SCOPED_TRACE("failure " + std::to_string(i));
    SimulatedVerbs::Seed(i);
    std::atomic<int64_t> pins = 0;
    std::unique_ptr<GatedStream> gated;
    const auto body = [&](const std::unique_ptr<Communicator>& comm) {
      Allreduce(comm);  // What the communicator needs on the GPU is made now.
      Broadcast(comm);
      if (comm->rank() == 0) {
        gated = std::make_unique<GatedStream>();
        pins = gpu_->fake()->Counts().pins;
        SimulatedVerbs::FailAfter(2 * i + 1, IBV_WC_RETRY_EXC_ERR);
      }
      Broadcast(comm);
      again += SentAgain(comm);
      EXPECT_EQ(gpu_->fake()->Counts().pins, pins) << "pinned with the link";
    };
    Run(2, body, 20'000);
    SimulatedVerbs::FailAfter(UINT64_MAX, IBV_WC_SUCCESS);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(again, 0u) << "no slice was copied";
  SimulatedVerbs::Seed(1);
}

// Broadcasts need no copy otherwise.
TEST_F(VerbsGpuFaultsTest, ACopyThatFailsEndsTheJob) {
  int ended = 0;
  for (uint64_t i = 0; i < Rounds(10, 100); ++i) {
    SCOPED_TRACE("failure " + std::to_string(i));
    SimulatedVerbs::Seed(i);
    SimulatedVerbs::FailAfter(10 + 2 * i, IBV_WC_RETRY_EXC_ERR);
    gpu_->fake()->Fail("cuMemcpyAsync", cuda::Result::kLaunchFailed, 0);
    const int64_t copies = gpu_->fake()->Counts().copies;
    std::atomic<int> failed = 0;
    std::atomic<int> said = 0;
    const Nanoseconds begin = Now();
    const auto body = [&](const std::unique_ptr<Communicator>& comm) {
      float* const data = Allocate(kCount, 1);
      for (int root = 0; root < 2; ++root) {
        if (annulus_broadcast(Handle(comm), data, data, kCount, ANNULUS_FLOAT32, root) == ANNULUS_OK) continue;
        ++failed;
        said += LastMessage(Handle(comm)).find("cannot be sent again: cuMemcpyAsync") != std::string::npos ? 1 : 0;
        break;
      }
      Free(data);
    };
    Run(2, body, 20'000);
    SimulatedVerbs::FailAfter(UINT64_MAX, IBV_WC_SUCCESS);
    EXPECT_LT(Now() - begin, 10 * kSecond) << "and not at the deadline";
    EXPECT_EQ(gpu_->fake()->Counts().copies, copies);
    EXPECT_EQ(failed > 0, said > 0);
    ended += failed > 0 ? 1 : 0;
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(ended, 0) << "no slice had to be copied";
  SimulatedVerbs::Seed(1);
}

// The CPU cannot copy such a slice out of its owner's way while its peer is late.
TEST_F(VerbsGpuFaultsTest, SlicesOfLinksThatKeepStayLent) {
  read_bytes_ = 0;
  const uint64_t before = SimulatedVerbs::Counts().written_bytes;
  const auto body = [&](const std::unique_ptr<Communicator>& comm) {
    const Deadline deadline = DeadlineAfter(20 * kSecond);
    while (comm->rank() == 1 && SimulatedVerbs::Counts().written_bytes - before < kBytes / 2) {
      ASSERT_LT(Now(), deadline);
      sched_yield();
    }
    // Much longer than a sender waits for its peer's word before it copies.
    const Deadline late = DeadlineAfter(20 * kMillisecond);
    while (comm->rank() == 1 && Now() < late) sched_yield();
    Broadcast(comm);
  };
  Run(2, body, 20'000);
}

// All slices have been written, and what is lacking is the word of a process that computes, whose device has failed.
TEST_F(VerbsGpuFaultsTest, ADeviceThatIsGoneIsNoticedWhileWrittenSlicesAreLent) {
  SimulatedVerbs::SetMachine({.devices = 2});
  devices_ = {"sim0", "sim1"};
  read_bytes_ = 0;
  const SimulatedCounts before = SimulatedVerbs::Counts();
  const auto body = [&](const std::unique_ptr<Communicator>& comm) {
    float* const data = Allocate(kCount, static_cast<float>(comm->rank()));
    const Deadline deadline = DeadlineAfter(20 * kSecond);
    const auto await = [&](const auto& is_there) {
      while (comm->rank() == 1 && !is_there(SimulatedVerbs::Counts())) {
        ASSERT_LT(Now(), deadline);
        sched_yield();
      }
    };
    await([&](const auto& now) { return now.written_bytes - before.written_bytes >= kBytes && now.waiting == 0; });
    if (comm->rank() == 1) SimulatedVerbs::FailPairs(1);
    await([&](const auto& now) { return now.failed > before.failed; });
    ASSERT_EQ(annulus_broadcast(Handle(comm), data, data, kCount, ANNULUS_FLOAT32, 0), ANNULUS_OK);
    ExpectAll(data, kCount, 0);
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
    Free(data);
  };
  Run(2, body, 20'000);
}

// The GPU sees what the card has written once it was told to look.
TEST_F(VerbsGpuFaultsTest, WhatAGpuMayNotSeeHasNotArrived) {
  cuda::FakeOptions options;
  options.sees_rdma = cuda::RdmaScope::kNone;
  const uint64_t failures = Rounds(10, 200);
  int64_t flushes = 0;
  for (uint64_t i = 0; i <= failures; ++i) {
    SCOPED_TRACE("failure " + std::to_string(i));
    MakeGpu(options);
    SimulatedVerbs::SetMachine({.hides_from_gpus = true});
    SimulatedVerbs::Seed(i);
    gpu_->fake()->OnFlush(SimulatedVerbs::ShowWrites);
    const auto at = static_cast<int>(static_cast<uint64_t>(flushes) * i / (failures + 1));
    if (i > 0) gpu_->fake()->Fail("cuFlushGPUDirectRDMAWrites", cuda::Result::kUnknown, at);
    std::atomic<uint64_t> again = 0;
    const auto body = [&](const std::unique_ptr<Communicator>& comm) {
      Broadcast(comm);
      Allreduce(comm);
      again += SentAgain(comm);
    };
    Run(3, body, 20'000);
    EXPECT_EQ(again > 0, i > 0);
    if (i == 0) flushes = gpu_->fake()->Counts().flushes;
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(flushes, 0);
  SimulatedVerbs::Seed(1);
}

// Where links do not go on.
TEST_F(VerbsGpuFaultsTest, AFlushThatFailsEndsTheJob) {
  cuda::FakeOptions options;
  options.sees_rdma = cuda::RdmaScope::kNone;
  MakeGpu(options);
  gpu_->fake()->Fail("cuFlushGPUDirectRDMAWrites", cuda::Result::kUnknown, 1);
  std::atomic<int> said = 0;
  const auto body = [&](const std::unique_ptr<Communicator>& comm) {
    float* const data = Allocate(kCount, 1);
    EXPECT_NE(annulus_allreduce(Handle(comm), data, data, kCount, ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK);
    said += LastMessage(Handle(comm)).find("letting a GPU see what was read for it") != std::string::npos ? 1 : 0;
    Free(data);
  };
  Run(2, body, 0);
  EXPECT_GT(said, 0);
}

// One rank destroys its communicator while its peer has yet to come, or while its device is reading.
TEST_F(VerbsGpuFaultsTest, CommunicatorsMayGoWhileCallsAreUnderWay) {
  for (const bool reads : {true, false}) {
    for (const int leaver : {0, 1}) {
      SCOPED_TRACE(std::string(reads ? "read" : "written") + " slices, rank " + std::to_string(leaver) + " leaves");
      // The second device is rank 1's: its READs stand still, while it answers others.
      SimulatedVerbs::SetMachine({.devices = 2});
      devices_ = {"sim0", "sim1"};
      read_bytes_ = reads ? 32 * 1024 : 0;
      std::vector<float*> buffers = {Allocate(kCount, 0), Allocate(kCount, 1)};
      std::atomic<bool> has_left = false;
      std::atomic<int> ready = 0;  // Ranks that have passed the barrier: nobody leaves before.
      const SimulatedCounts before = SimulatedVerbs::Counts();
      Run(2, [&](const std::unique_ptr<Communicator>& comm) {
        float* const data = buffers[static_cast<size_t>(comm->rank())];
        const Deadline deadline = DeadlineAfter(20 * kSecond);
        ASSERT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
        for (++ready; ready < 2 && Now() < deadline;) sched_yield();
        if (comm->rank() == 1 && reads) SimulatedVerbs::SetMachine({.devices = 2, .slow_device = 1});
        annulus_request_t* request = nullptr;
        if (comm->rank() == 0 || leaver == 1) {
          ASSERT_EQ(annulus_broadcast_async(Handle(comm), data, data, kCount, ANNULUS_FLOAT32, 0, &request),
                    ANNULUS_OK);
        }
        while (comm->rank() == leaver && SimulatedVerbs::Counts().written_bytes == before.written_bytes) {
          ASSERT_LT(Now(), deadline);
          sched_yield();
        }
        if (comm->rank() == leaver) return has_left.store(true);
        while (!has_left && Now() < deadline) sched_yield();
      });
      SimulatedVerbs::SetMachine({});
      for (float* const buffer : buffers) Free(buffer);
      ASSERT_FALSE(HasFailure());
    }
  }
}

// Ends of a link, whose memory is a GPU's.
class VerbsGpuLinkTest : public RegisteredLinkTest {
 protected:
  void SetUp() override {
    RegisteredLinkTest::SetUp();
    domains_.Add(gpu_.domain());
    OpenWith([this](TransportConfig* config) {
      config->slot_memory = &domains_;
      config->settings.Set("verbs_read_bytes", int64_t{1000});
    });
    data_ = gpu_.Allocate(kBytes);
    ASSERT_TRUE(gpu_.domain()->Prepare(data_, kBytes, ReduceOn::kAuto, nullptr).ok());
  }
  void TearDown() override {
    RegisteredLinkTest::TearDown();
    domains_.Remove(gpu_.domain());
  }

  MemoryDomains domains_;
  CudaTestDevice gpu_{{.sees_rdma = cuda::RdmaScope::kNone}};
  std::byte* data_ = nullptr;
};

// What the GPU is, and what it sees, was asked for all slices of a region.
TEST_F(VerbsGpuLinkTest, ASliceThatWasReadAsksTheDriverNothing) {
  constexpr int kRounds = 20;
  std::byte* const to = gpu_.Allocate(kBytes);
  ASSERT_TRUE(gpu_.domain()->Prepare(to, kBytes, ReduceOn::kAuto, nullptr).ok());
  const auto exchange = [&] {
    const Recv* const recv = Expect(to);
    const Send* const send = Post(data_, kSlotBytes);
    ASSERT_TRUE(Drive([&] { return recv->code == Code::kOk && send->code == Code::kOk; }));
    EXPECT_EQ(recv->data, to);
  };
  exchange();
  const int64_t before = gpu_.fake()->Counts().questions;
  const int64_t flushes = gpu_.fake()->Counts().flushes;
  for (int i = 0; i < kRounds; ++i) exchange();
  EXPECT_EQ(gpu_.fake()->Counts().flushes - flushes, kRounds);
  // Where it leaves and where it lands, and some look for what was freed.
  EXPECT_LT(gpu_.fake()->Counts().questions - before, 3 * kRounds);
  gpu_.Free(data_);
  gpu_.Free(to);
}

TEST_F(VerbsGpuLinkTest, APromiseKeepsNoMemoryThatWasFreed) {
  ASSERT_TRUE(end(0).shortcuts().in_place->SendsFrom(data_, kSlotBytes));
  ASSERT_GT(SimulatedVerbs::Counts().dma_buf_bytes, 0u);
  gpu_.Free(data_);
  EXPECT_TRUE(Drive([] { return SimulatedVerbs::Counts().dma_buf_bytes == 0; })) << "it is swept in time";
  // The promise that is gone means nothing to what has its place.
  std::byte* const other = gpu_.Allocate(kBytes);
  ASSERT_TRUE(end(0).shortcuts().in_place->SendsFrom(other, kSlotBytes));
  Recv* const recv = Expect();
  const Send* const send = Post(other, kSlotBytes);
  EXPECT_TRUE(Drive([&] { return recv->code == Code::kOk && send->code == Code::kOk; }));
  end(1).Release(recv);
  gpu_.Free(other);
}

}  // namespace
}  // namespace annulus
