// Jobs over verbs whose buffers lie in the memory of a GPU, on the simulated provider and the stand-in for CUDA's
// driver: what leaves from there without a copy, what is copied where a device refuses, and which memory the devices
// know. The CPU cannot touch the memory: a copy by it would end the test.
#include <annulus.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "collectives/comm/communicator.h"
#include "collectives/reduce/memory_domains.h"
#include "cuda_kernels/driver/driver.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/cuda/cuda_test_device.h"
#include "tests/cuda/fake_driver/fake_cuda.h"
#include "tests/soak/rounds.h"
#include "tests/transport/verbs/verbs_job.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/device/verbs_regions.h"

namespace annulus {
namespace {

constexpr size_t kCount = 6 * 40'000;
constexpr size_t kBytes = kCount * sizeof(float);
constexpr int64_t kSlices = (kBytes + 256 * 1024 - 1) / (256 * 1024);

uint64_t ReadFromGpus() { return SimulatedVerbs::Counts().read_from_gpus; }

class VerbsGpuTest : public ::testing::Test {
 protected:
  void SetUp() override { MakeGpu({}); }
  void TearDown() override {
    domains_.Remove(gpu_->domain());
    SimulatedVerbs::SetMachine({});
    const SimulatedCounts counts = SimulatedVerbs::Counts();
    EXPECT_EQ(counts.refused_posts, 0u);
    EXPECT_EQ(counts.objects, 0u);
  }

  void MakeGpu(const cuda::FakeOptions& options) {
    if (gpu_ != nullptr) domains_.Remove(gpu_->domain());
    gpu_.reset();
    gpu_ = std::make_unique<CudaTestDevice>(options);
    domains_.Add(gpu_->domain());
  }

  using Body = std::function<void(const std::unique_ptr<Communicator>& comm)>;
  // Runs `body` on a thread for each rank, by the ring, and with no call staged as a whole.
  void Run(int nranks, const Body& body, int reconnect_ms = -1) {
    ClusterConfig config;
    config.nranks = nranks;
    config.algorithm = "ring";
    config.small_bytes = 0;
    config.device_staged_bytes = 0;
    config.transport = "verbs";
    config.reconnect_ms = reconnect_ms;
    const TransportInfo info = SimulatedVerbsInfo();
    const TransportInfo* const list[] = {&info, &kTcpTransport};
    const auto before = [this](int rank, Options* options) {
      options->verbs_read_bytes = read_bytes_;
      if (!devices_.empty()) options->verbs_device = devices_[static_cast<size_t>(rank)];
    };
    VerbsJob{.ranks = config, .transports = list, .before = before, .domains = &domains_}.Run(body);
  }

  float* Allocate(size_t count, float value) {
    const std::vector<float> content(count, value);
    std::byte* const memory = gpu_->Allocate(count * sizeof(float));
    gpu_->Write(memory, content.data(), count * sizeof(float));
    return reinterpret_cast<float*>(memory);
  }
  void Free(float* memory) { gpu_->Free(reinterpret_cast<std::byte*>(memory)); }
  void ExpectAll(const float* memory, size_t count, float value) {
    std::vector<float> content(count);
    gpu_->Read(content.data(), reinterpret_cast<const std::byte*>(memory), count * sizeof(float));
    EXPECT_EQ(content, std::vector<float>(count, value));
  }

  // Bytes that links which went on over TCP sent again.
  static uint64_t SentAgain(const std::unique_ptr<Communicator>& comm) {
    annulus_transport_counters_t counters{};
    counters.struct_bytes = sizeof counters;
    EXPECT_EQ(annulus_comm_transport_counters(Handle(comm), 0, &counters), ANNULUS_OK);
    return counters.bytes_sent_again;
  }

  // Each rank broadcasts once.
  void Broadcast(const std::unique_ptr<Communicator>& comm) {
    for (int root = 0; root < comm->nranks(); ++root) {
      float* const data = Allocate(kCount, static_cast<float>(comm->rank() + 1));
      ASSERT_EQ(annulus_broadcast(Handle(comm), data, data, kCount, ANNULUS_FLOAT32, root), ANNULUS_OK)
          << LastMessage(Handle(comm));
      ExpectAll(data, kCount, static_cast<float>(root + 1));
      EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
      Free(data);
    }
  }
  void Allreduce(const std::unique_ptr<Communicator>& comm) {
    float* const data = Allocate(kCount, static_cast<float>(comm->rank() + 1));
    ASSERT_EQ(annulus_allreduce(Handle(comm), data, data, kCount, ANNULUS_FLOAT32, ANNULUS_SUM), ANNULUS_OK)
        << LastMessage(Handle(comm));
    const int nranks = comm->nranks();
    ExpectAll(data, kCount, static_cast<float>(nranks * (nranks + 1) / 2));
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
    Free(data);
  }

  MemoryDomains domains_;
  std::unique_ptr<CudaTestDevice> gpu_;
  int64_t read_bytes_ = 32 * 1024;    // As ANNULUS_VERBS_READ_BYTES.
  std::vector<std::string> devices_;  // By rank, as ANNULUS_VERBS_DEVICE; empty: the default.
};

// All that is sent is input or result. It goes from GPU to GPU.
TEST_F(VerbsGpuTest, BroadcastsGoFromGpuToGpuWithoutACopy) {
  for (const int nranks : {2, 3}) {
    const SimulatedCounts before = SimulatedVerbs::Counts();
    const int64_t copies = gpu_->fake()->Counts().copies;
    Run(nranks, [this](const auto& comm) { Broadcast(comm); });
    const SimulatedCounts after = SimulatedVerbs::Counts();
    const auto sends = static_cast<uint64_t>(nranks * (nranks - 1));
    EXPECT_EQ(after.read_from_gpus - before.read_from_gpus, sends * kBytes);
    EXPECT_EQ(after.read_into_gpus - before.read_into_gpus, sends * kBytes);
    EXPECT_EQ(gpu_->fake()->Counts().copies, copies);
    EXPECT_EQ(gpu_->fake()->Counts().flushes, 0) << "it sees what is written without";
  }
}

// Without READs slices arrive in slots, and the GPU copies each. They leave without a copy all the same.
TEST_F(VerbsGpuTest, WrittenSlicesLeaveTheGpuWithoutACopy) {
  read_bytes_ = 0;
  const SimulatedCounts before = SimulatedVerbs::Counts();
  const int64_t copies = gpu_->fake()->Counts().copies;
  Run(2, [this](const auto& comm) { Broadcast(comm); });
  EXPECT_EQ(SimulatedVerbs::Counts().read_from_gpus - before.read_from_gpus, 2 * kBytes);
  EXPECT_EQ(SimulatedVerbs::Counts().read_into_gpus, before.read_into_gpus);
  EXPECT_GE(gpu_->fake()->Counts().copies - copies, 2 * kSlices);
}

TEST_F(VerbsGpuTest, SumsAreRight) {
  for (const int nranks : {2, 3}) {
    const SimulatedCounts before = SimulatedVerbs::Counts();
    Run(nranks, [this](const auto& comm) { Allreduce(comm); });
    const SimulatedCounts after = SimulatedVerbs::Counts();
    // The own share at first, and in the second half all; partial sums of more ranks are in slots.
    const auto others = static_cast<uint64_t>(nranks - 1);
    EXPECT_EQ(after.read_from_gpus - before.read_from_gpus, kBytes + others * kBytes);
    EXPECT_EQ(after.read_into_gpus - before.read_into_gpus, others * kBytes);
  }
}

// GPUs that see what cards have written after a flush alone, or never.
TEST_F(VerbsGpuTest, WhatIsReadForAGpuIsFlushedWhereThatIsNeeded) {
  for (const bool flushes : {true, false}) {
    cuda::FakeOptions options;
    options.sees_rdma = cuda::RdmaScope::kNone;
    options.flushes_rdma = flushes;
    MakeGpu(options);
    const SimulatedCounts before = SimulatedVerbs::Counts();
    Run(2, [this](const auto& comm) { Broadcast(comm); });
    const SimulatedCounts after = SimulatedVerbs::Counts();
    EXPECT_EQ(after.read_from_gpus - before.read_from_gpus, 2 * kBytes);
    EXPECT_EQ(after.read_into_gpus - before.read_into_gpus, flushes ? 2 * kBytes : 0);
    const int64_t count = gpu_->fake()->Counts().flushes;
    EXPECT_EQ(count >= 2 * kSlices, flushes) << count;
    EXPECT_EQ(count > 0, flushes) << count;
  }
}

TEST_F(VerbsGpuTest, WhatADeviceRefusesIsCopied) {
  SimulatedVerbs::SetMachine({.dma_buf_error = EOPNOTSUPP});
  const LogLevel level = GetLogLevel();
  SetLogLevel(LogLevel::kInfo);
  ::testing::internal::CaptureStderr();
  const uint64_t before = SimulatedVerbs::Counts().read_in_place;
  Run(2, [this](const auto& comm) {
    Broadcast(comm);
    Allreduce(comm);
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  SetLogLevel(level);
  EXPECT_EQ(SimulatedVerbs::Counts().read_in_place, before);
  for (const std::string rank : {"annulus[0]", "annulus[1]"}) {
    const std::string text = rank + " info: some memory of GPUs goes through host memory, by a copy";
    const size_t told = log.find(text);
    EXPECT_NE(told, std::string::npos) << log;
    EXPECT_EQ(log.find(text, told + 1), std::string::npos) << "told twice: " << log;
  }
}

TEST_F(VerbsGpuTest, WhatAGpuDoesNotExportIsCopied) {
  for (const bool has_function : {true, false}) {
    cuda::FakeOptions options;
    options.exports_memory = false;
    if (!has_function) options.missing = "cuMemGetHandleForAddressRange";
    MakeGpu(options);
    const uint64_t before = SimulatedVerbs::Counts().read_in_place;
    Run(2, [this](const auto& comm) {
      Broadcast(comm);
      Allreduce(comm);
    });
    EXPECT_EQ(SimulatedVerbs::Counts().read_in_place, before);
  }
}

// What a link sends again when it goes on over TCP is copied first.
TEST_F(VerbsGpuTest, LinksGoOnOverTcp) {
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

// Whoever drives a link may be the one for whom a stream waits.
TEST_F(VerbsGpuTest, LinksThatGoOnPinNothingAndWaitForNoStream) {
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
TEST_F(VerbsGpuTest, ACopyThatFailsEndsTheJob) {
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
TEST_F(VerbsGpuTest, SlicesOfLinksThatKeepStayLent) {
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
TEST_F(VerbsGpuTest, ADeviceThatIsGoneIsNoticedWhileWrittenSlicesAreLent) {
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

// Memory that was freed, where other memory comes, or does not. What was freed is not kept.
TEST_F(VerbsGpuTest, FreedMemoryIsForgotten) {
  for (const bool keeps_addresses : {false, true}) {
    cuda::FakeOptions options;
    options.keeps_addresses = keeps_addresses;
    MakeGpu(options);
    Run(2, [this](const auto& comm) {
      uint64_t registered_bytes = 0;
      for (int i = 0; i < 10; ++i) {
        float* const data = Allocate(kCount, static_cast<float>(10 * i + comm->rank()));
        const uint64_t before = ReadFromGpus();
        ASSERT_EQ(annulus_broadcast(Handle(comm), data, data, kCount, ANNULUS_FLOAT32, 0), ANNULUS_OK);
        ExpectAll(data, kCount, static_cast<float>(10 * i));
        EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
        if (comm->rank() == 0) {
          EXPECT_EQ(ReadFromGpus() - before, kBytes);
          const uint64_t now = SimulatedVerbs::Counts().registered_bytes;
          if (i == 1) registered_bytes = now;
          EXPECT_TRUE(i == 0 || now <= registered_bytes) << now;
        }
        EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
        Free(data);
      }
    });
  }
}

TEST_F(VerbsGpuTest, RegionsMakeRoomForOthers) {
  constexpr size_t kSmall = 16 * 1024;
  constexpr size_t kBuffers = VerbsRegions::kMost + 20;
  const uint64_t registrations = SimulatedVerbs::Counts().registrations;
  const uint64_t from_gpus = ReadFromGpus();
  Run(2, [this](const auto& comm) {
    std::vector<float*> buffers;
    for (size_t i = 0; i < kBuffers; ++i) buffers.push_back(Allocate(kSmall, static_cast<float>(i)));
    for (int round = 0; round < 3; ++round) {
      for (size_t i = 0; i < kBuffers; ++i) {
        ASSERT_EQ(annulus_broadcast(Handle(comm), buffers[i], buffers[i], kSmall, ANNULUS_FLOAT32, 0), ANNULUS_OK);
        ExpectAll(buffers[i], kSmall, static_cast<float>(i));
      }
    }
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
    for (float* const buffer : buffers) Free(buffer);
  });
  EXPECT_GT(SimulatedVerbs::Counts().registrations - registrations, kBuffers);
  const uint64_t all = 3 * kBuffers * kSmall * sizeof(float);
  EXPECT_GT(ReadFromGpus() - from_gpus, all / 2);
  EXPECT_LT(ReadFromGpus() - from_gpus, all) << "each of the last ones was copied before another made room for it";
}

}  // namespace
}  // namespace annulus
