// What a communicator tells of how slices of GPUs' memory go over its links, and why not without a copy.
#include <annulus.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "tests/transport/verbs/verbs_gpu_job.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/memory/device_exports.h"
#include "transport/verbs/device/verbs_regions.h"

namespace annulus {
namespace {

class VerbsGpuReportTest : public VerbsGpuJob {
 protected:
  // A slice, which is not the whole of larger buffers.
  static constexpr size_t kSmall = 16 * 1024;

  // Rank 0 broadcasts, and all wait for all.
  static void BroadcastFrom(const std::unique_ptr<Communicator>& comm, float* data, size_t count) {
    ASSERT_EQ(annulus_broadcast(Handle(comm), data, data, count, ANNULUS_FLOAT32, 0), ANNULUS_OK);
    ASSERT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
  }

  // What rank 0 tells begins so, and is no more where nothing is expected: small slices land in slots.
  void ExpectOfSender(const std::unique_ptr<Communicator>& comm, const std::string& expected) {
    if (comm->rank() != 0) return;
    const std::string why = ReportOf(comm).why;
    EXPECT_EQ(why.substr(0, expected.size()), expected);
    EXPECT_EQ(why.empty(), expected.empty()) << why;
  }

  // What both ranks tell after a broadcast of each begins so, and is no more where nothing is expected.
  void ExpectWhy(const std::string& expected) {
    Run(2, [&](const auto& comm) {
      Broadcast(comm);
      const CudaReport report = ReportOf(comm);
      EXPECT_EQ(report.path, CudaReport::Path::kKernels);
      const std::string why = report.why;
      EXPECT_EQ(why.substr(0, expected.size()), expected);
      EXPECT_EQ(why.empty(), expected.empty()) << why;
    });
  }
};

TEST_F(VerbsGpuReportTest, SlicesWithoutACopyAreTheBest) { ExpectWhy(""); }

TEST_F(VerbsGpuReportTest, ARefusalIsTold) {
  SimulatedVerbs::SetMachine({.dma_buf_error = EOPNOTSUPP});
  ExpectWhy("memory of GPUs over verbs: by copies: verbs: sim0, port 1");
}

TEST_F(VerbsGpuReportTest, ASettingIsTold) {
  wish_ = VerbsDeviceMemory::kOff;
  ExpectWhy("memory of GPUs over verbs: by copies: ANNULUS_VERBS_DEVICE_MEMORY is off");
}

TEST_F(VerbsGpuReportTest, ADriverThatCannotExportIsTold) {
  MakeGpu({.missing = "cuMemGetHandleForAddressRange"});
  ExpectWhy("memory of GPUs over verbs: by copies: CUDA's driver has no cuMemGetHandleForAddressRange");
  MakeGpu({.exports_memory = false});
  ExpectWhy("memory of GPUs over verbs: by copies: Fake GPU (sm_90) has no dma-bufs");
}

TEST_F(VerbsGpuReportTest, AGpuThatSeesNothingOfWhatCardsWriteIsTold) {
  MakeGpu({.sees_rdma = cuda::RdmaScope::kNone, .flushes_rdma = false});
  ExpectWhy("memory of GPUs over verbs: without a copy; some by copies: GPU 0 does not see");
}

TEST_F(VerbsGpuReportTest, BeforeTheFirstSliceNothingIsKnown) {
  Run(2, [this](const auto& comm) {
    float* const data = Allocate(kCount, 1);
    // So little is never sent from there.
    ASSERT_EQ(annulus_broadcast(Handle(comm), data, data, 8, ANNULUS_FLOAT32, 0), ANNULUS_OK);
    EXPECT_STREQ(ReportOf(comm).why, "memory of GPUs over verbs: none without a copy yet");
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
    Free(data);
  });
}

TEST_F(VerbsGpuReportTest, MemoryThatCannotBeExportedIsTold) {
  MakeGpu({.shares_memory = false});
  ExpectWhy("memory of GPUs over verbs: by copies: no memory of cudaMalloc");
}

TEST_F(VerbsGpuReportTest, AllocationsBeyondThoseThatDevicesKnowAreToldOf) {
  Run(2, [this](const auto& comm) {
    std::vector<float*> buffers;
    for (size_t i = 0; i < VerbsRegions::kMost; ++i) buffers.push_back(Allocate(kSmall, 1));
    for (float* const each : buffers) BroadcastFrom(comm, each, kSmall);
    ExpectOfSender(comm, "");
    buffers.push_back(Allocate(kCount, 1));
    BroadcastFrom(comm, buffers.back(), kSmall);
    ExpectOfSender(comm,
                   "memory of GPUs over verbs: without a copy; some by copies: more allocations than a device knows");
    for (int i = 0; i < 3; ++i) BroadcastFrom(comm, buffers.back(), kCount);
    ExpectOfSender(comm, "");
    for (float* const each : buffers) Free(each);
  });
}

// What waits for memory that may be registered is told of until it has it.
TEST_F(VerbsGpuReportTest, WhatWasRegisteredAfterAllLacksNothing) {
  SimulatedVerbs::SetMachine({.most_dma_buf_bytes = 2 * kBytes});
  Run(2, [this](const auto& comm) {
    float* const first = Allocate(kCount, 1);
    float* const second = Allocate(kCount, 1);
    BroadcastFrom(comm, first, kCount);
    ExpectOfSender(comm, "");
    BroadcastFrom(comm, second, kSmall);
    ExpectOfSender(comm, "memory of GPUs over verbs: without a copy; some by copies: verbs: sim0");
    for (int i = 0; i < 3; ++i) BroadcastFrom(comm, second, kCount);
    ExpectOfSender(comm, "");
    Free(first);
    Free(second);
  });
}

TEST_F(VerbsGpuReportTest, LinksThatAreGoneAreToldOfNoMore) {
  SimulatedVerbs::SetMachine({.dma_buf_error = EOPNOTSUPP});
  const void* links = nullptr;
  const auto* const domain = static_cast<CudaDomain*>(gpu_->domain());
  Run(2, [&](const auto& comm) {
    Broadcast(comm);
    if (comm->rank() == 0) links = comm->links();
    EXPECT_STREQ(domain->Report().why, "") << "that of no links";
  });
  EXPECT_STREQ(domain->Report(ReduceOn::kAuto, links).why, "");
}

// The process keeps each text that it has told, and not ever more of them.
TEST_F(VerbsGpuReportTest, TextsAreKept) {
  const auto* const domain = static_cast<CudaDomain*>(gpu_->domain());
  Run(2, [this](const auto& comm) { Broadcast(comm); });
  const DeviceExports* const exports = gpu_->domain()->exports();
  const char* first = nullptr;
  const int links = 0;
  for (int i = 0; i < 1000; ++i) {
    exports->TellWay(&links, "by way " + std::to_string(i));
    const char* const why = domain->Report(ReduceOn::kAuto, &links).why;
    if (i == 0) first = why;
    EXPECT_NE(*why, '\0');
  }
  EXPECT_STREQ(domain->Report(ReduceOn::kAuto, &links).why, "for more reasons than are kept; the log has the first");
  EXPECT_STREQ(domain->Report(ReduceOn::kCpu, &links).why, "device_reduce (ANNULUS_DEVICE_REDUCE) is cpu");
  EXPECT_STREQ(first, "by way 0");
  exports->TellWay(&links, "by way 0");
  EXPECT_EQ(domain->Report(ReduceOn::kAuto, &links).why, first);
  exports->TellWay(&links, "");
}

}  // namespace
}  // namespace annulus
