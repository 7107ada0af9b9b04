// Jobs over verbs whose buffers lie in the memory of GPUs, on the simulated provider and the stand-in for CUDA's
// driver. The CPU cannot touch the memory: a copy by it would end the test.
//
// Threads: Allocate, Free and the checks from any.
#pragma once

#include <annulus.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "collectives/comm/communicator.h"
#include "collectives/reduce/memory_domains.h"
#include "tests/base/alike.h"
#include "tests/collectives/harness/cluster.h"
#include "tests/cuda/cuda_test_device.h"
#include "tests/transport/verbs/verbs_job.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/memory/memory.h"
#include "transport/tcp/tcp.h"
#include "transport/verbs/verbs_settings.h"

namespace annulus {

inline constexpr size_t kCount = 6 * 40'000;
inline constexpr size_t kBytes = kCount * sizeof(float);
inline constexpr int64_t kSlices = (kBytes + 256 * 1024 - 1) / (256 * 1024);

inline uint64_t ReadFromGpus() { return SimulatedVerbs::Counts().read_from_gpus; }

class VerbsGpuJob : public ::testing::Test {
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
      options->verbs_device_memory = wish_;
      if (!devices_.empty()) options->verbs_device = devices_[static_cast<size_t>(rank)];
    };
    VerbsJob{.ranks = config, .transports = list, .memory = registry_, .before = before, .domains = &domains_}.Run(
        body);
  }

  float* Allocate(size_t count, float value) {
    const std::unique_ptr<float[]> content(new float[count]);
    FillWith(content.get(), count, value);
    std::byte* const memory = gpu_->fake()->Allocate(number_, count * sizeof(float));
    gpu_->Write(memory, content.get(), count * sizeof(float));
    return reinterpret_cast<float*>(memory);
  }
  void Free(float* memory) { gpu_->Free(reinterpret_cast<std::byte*>(memory)); }
  void ExpectAll(const float* memory, size_t count, float value) {
    const std::unique_ptr<float[]> content(new float[count]);
    gpu_->Read(content.get(), reinterpret_cast<const std::byte*>(memory), count * sizeof(float));
    EXPECT_TRUE(AllAre(content.get(), count, value)) << content[0] << " is the first, and not all are " << value;
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

  // As annulus_comm_device tells it of the process's GPUs.
  CudaReport ReportOf(const std::unique_ptr<Communicator>& comm) const {
    return static_cast<CudaDomain*>(gpu_->domain())->Report(comm->options().device_reduce, comm->links());
  }

  // What is logged meanwhile at the level info.
  template <class Body>
  static std::string LogOf(const Body& body) {
    const LogLevel level = GetLogLevel();
    SetLogLevel(LogLevel::kInfo);
    ::testing::internal::CaptureStderr();
    body();
    SetLogLevel(level);
    return ::testing::internal::GetCapturedStderr();
  }

  MemoryDomains domains_;
  std::unique_ptr<CudaTestDevice> gpu_;
  int number_ = 0;  // The GPU on which Allocate does.
  const MemoryRegistry* registry_ = nullptr;
  VerbsDeviceMemory wish_ = VerbsDeviceMemory::kAuto;
  int64_t read_bytes_ = 32 * 1024;    // As ANNULUS_VERBS_READ_BYTES.
  std::vector<std::string> devices_;  // By rank, as ANNULUS_VERBS_DEVICE; empty: the default.
};

}  // namespace annulus
