// Jobs over verbs whose buffers lie in the memory of a GPU: what leaves from there without a copy, what is copied where
// a device refuses or the setting wants it, and which memory the devices know.
#include <annulus.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tests/transport/contract/contract_link.h"
#include "tests/transport/verbs/verbs_gpu_job.h"
#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/verbs/device/verbs_regions.h"

namespace annulus {
namespace {

class VerbsGpuTest : public VerbsGpuJob {};

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
  for (const int error : {EOPNOTSUPP, EPROTONOSUPPORT, ENOSYS}) {
    SimulatedVerbs::SetMachine({.dma_buf_error = error});
    const uint64_t before = SimulatedVerbs::Counts().read_in_place;
    const int64_t exports = gpu_->fake()->Counts().exports;
    const std::string log = LogOf([this] {
      Run(2, [this](const auto& comm) {
        Broadcast(comm);
        Allreduce(comm);
        EXPECT_NE(comm->DescribeLink(1 - comm->rank()).find("memory of GPUs by copies: "), std::string::npos);
      });
    });
    EXPECT_EQ(SimulatedVerbs::Counts().read_in_place, before);
    EXPECT_EQ(gpu_->fake()->Counts().exports - exports, 2) << "each rank asks once";
    for (const std::string rank : {"annulus[0]", "annulus[1]"}) {
      const std::string text = rank + " info: some memory of GPUs goes through host memory, by a copy";
      const size_t told = log.find(text);
      EXPECT_NE(told, std::string::npos) << log;
      EXPECT_EQ(log.find(text, told + 1), std::string::npos) << "told twice: " << log;
    }
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

// CUDA's way of saying so (801) counts for all memory of the GPU.
TEST_F(VerbsGpuTest, AGpuThatRefusesOnceIsNotAskedAgain) {
  gpu_->fake()->Fail("cuMemGetHandleForAddressRange", cuda::Result::kNotSupported, 0);
  const uint64_t before = ReadFromGpus();
  Run(2, [this](const auto& comm) {
    Broadcast(comm);
    Broadcast(comm);
  });
  EXPECT_EQ(ReadFromGpus() - before, 2 * kBytes) << "of the rank whose GPU did not refuse";
}

TEST_F(VerbsGpuTest, OneGpusRefusalIsNotThatOfOthers) {
  cuda::FakeOptions options;
  options.devices = 2;
  options.without_exports = 1;
  MakeGpu(options);
  const SimulatedCounts before = SimulatedVerbs::Counts();
  Run(2, [this](const auto& comm) { Broadcast(comm); });
  EXPECT_EQ(ReadFromGpus(), before.read_from_gpus);
  // As each rank has a GPU of its own in one process, they could be different.
  Run(2, [this](const auto& comm) {
    Broadcast(comm);
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
    if (comm->rank() == 0) number_ = 1;
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
    Broadcast(comm);
  });
  EXPECT_EQ(ReadFromGpus() - before.read_from_gpus, 2 * kBytes);
  EXPECT_EQ(SimulatedVerbs::Counts().read_into_gpus - before.read_into_gpus, 2 * kBytes);
}

TEST_F(VerbsGpuTest, SlicesTakeSeveralRails) {
  SimulatedVerbs::SetMachine({.devices = 2});
  devices_ = {"sim0,sim1", "sim0,sim1"};
  const SimulatedCounts before = SimulatedVerbs::Counts();
  Run(2, [this](const auto& comm) {
    for (int i = 0; i < 5; ++i) Broadcast(comm);
  });
  const SimulatedCounts after = SimulatedVerbs::Counts();
  EXPECT_EQ(after.read_from_gpus - before.read_from_gpus, 10 * kBytes);
  EXPECT_EQ(after.read_into_gpus - before.read_into_gpus, 10 * kBytes);
  for (const size_t device : {0, 1}) EXPECT_GT(after.device_bytes[device] - before.device_bytes[device], kBytes);
}

// What a card has no room for is no matter of locked memory.
TEST_F(VerbsGpuTest, OnlyMemoryOfGpusMakesRoomForMemoryOfGpus) {
  SimulatedVerbs::SetMachine({.most_dma_buf_bytes = 2 * kBytes});
  registry_ = &TestRegistry();
  const uint64_t from_gpus = ReadFromGpus();
  Run(2, [this](const auto& comm) {
    const auto broadcast = [&comm](float* data) {
      EXPECT_EQ(annulus_broadcast(Handle(comm), data, data, kCount, ANNULUS_FLOAT32, 0), ANNULUS_OK);
      EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
    };
    void* host = nullptr;
    ASSERT_TRUE(TestRegistry().Allocate(kBytes, &host).ok());
    broadcast(static_cast<float*>(host));
    float* const first = Allocate(kCount, 1);
    float* const second = Allocate(kCount, 2);
    broadcast(first);
    for (int i = 0; i < 4; ++i) broadcast(second);
    const uint64_t before = SimulatedVerbs::Counts().registrations;
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
    broadcast(static_cast<float*>(host));
    EXPECT_EQ(SimulatedVerbs::Counts().registrations, before) << "the host's memory has made room";
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
    EXPECT_TRUE(TestRegistry().Free(host).ok());
    Free(first);
    Free(second);
  });
  EXPECT_GE(ReadFromGpus() - from_gpus, 3 * kBytes) << "the second one never found room";
}

// Though nothing new is used.
TEST_F(VerbsGpuTest, WhatWasFreedIsGivenBackInTime) {
  Run(2, [this](const auto& comm) {
    float* const data = Allocate(kCount, 1);
    EXPECT_EQ(annulus_broadcast(Handle(comm), data, data, kCount, ANNULUS_FLOAT32, 0), ANNULUS_OK);
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
    EXPECT_EQ(SimulatedVerbs::Counts().dma_buf_bytes, 2 * kBytes);
    EXPECT_EQ(annulus_barrier(Handle(comm)), ANNULUS_OK);
    Free(data);
    const Deadline deadline = DeadlineAfter(20 * kSecond);
    int32_t left = 1;
    while (left > 0) {
      const int32_t own = SimulatedVerbs::Counts().dma_buf_bytes > 0 && Now() < deadline ? 1 : 0;
      ASSERT_EQ(annulus_allreduce(Handle(comm), &own, &left, 1, ANNULUS_INT32, ANNULUS_SUM), ANNULUS_OK);
    }
    EXPECT_EQ(SimulatedVerbs::Counts().dma_buf_bytes, 0u);
  });
}

// Folders as those in which Linux tells of devices.
class VerbsGpuDistanceTest : public VerbsGpuJob {
 protected:
  void TearDown() override {
    VerbsGpuJob::TearDown();
    std::filesystem::remove_all(folder_);
  }
  // Where the card and the GPU are: below "devices", with NUMA node `nodes`.
  void Place(const std::string& card, const std::string& gpu, int node_of_card, int node_of_gpu) {
    namespace fs = std::filesystem;
    fs::remove_all(folder_);
    fs::create_directories(folder_ + "/class/infiniband/sim0");
    fs::create_directories(folder_ + "/bus/pci/devices");
    for (const auto& [path, node] : {std::pair(card, node_of_card), std::pair(gpu, node_of_gpu)}) {
      fs::create_directories(folder_ + "/devices/" + path);
      std::ofstream(folder_ + "/devices/" + path + "/numa_node") << node << "\n";
    }
    fs::create_directory_symlink(folder_ + "/devices/" + card, folder_ + "/class/infiniband/sim0/device");
    fs::create_directory_symlink(folder_ + "/devices/" + gpu, folder_ + "/bus/pci/devices/" + kGpu);
    SimulatedVerbs::SetMachine({.sysfs = path_.c_str()});
  }
  // Bytes that left from a GPU's memory, and what the log says.
  uint64_t Left(std::string* log) {
    const uint64_t before = ReadFromGpus();
    *log = LogOf([this] { Run(2, [this](const auto& comm) { Broadcast(comm); }); });
    return ReadFromGpus() - before;
  }

  static constexpr const char* kGpu = "0000:10:00.0";

  const std::string folder_ =
      std::filesystem::canonical(::testing::TempDir()).string() + "/gpus" + std::to_string(getpid());
  const std::string path_ = folder_ + "/class/infiniband";
};

TEST_F(VerbsGpuDistanceTest, AutoUsesGpusThatAreNotKnownToBeFar) {
  struct Case {
    std::string card, gpu;
    int node_of_card, node_of_gpu;
    uint64_t bytes;
    std::string text;
  };
  const std::string gpu = "pci0000:0f/0000:0f:01.0/";
  for (const Case& c : {
           Case{gpu + "0000:11:00.0", gpu + kGpu, 0, 0, 2 * kBytes, "below one PCIe switch or port"},
           Case{"pci0000:0f/0000:0f:02.0/0000:20:00.0", gpu + kGpu, 0, 1, 2 * kBytes, "below one PCIe host bridge"},
           Case{"pci0000:80/0000:80:01.0/0000:81:00.0", gpu + kGpu, 1, 1, 2 * kBytes, "on NUMA node 1 both"},
           Case{"pci0000:80/0000:80:01.0/0000:81:00.0", gpu + kGpu, 1, 0, 0, "are on NUMA nodes 1 and 0"},
           Case{"pci0000:80/0000:80:01.0/0000:81:00.0", gpu + kGpu, -1, 0, 2 * kBytes, "without a copy\n"},
       }) {
    SCOPED_TRACE(c.text);
    Place(c.card, c.gpu, c.node_of_card, c.node_of_gpu);
    std::string log;
    EXPECT_EQ(Left(&log), c.bytes);
    EXPECT_NE(log.find(c.text), std::string::npos) << log;
  }
}

TEST_F(VerbsGpuDistanceTest, TheSettingDecides) {
  Place("pci0000:80/0000:81:00.0", std::string("pci0000:0f/") + kGpu, 1, 0);
  std::string log;
  wish_ = VerbsDeviceMemory::kOn;
  EXPECT_EQ(Left(&log), 2 * kBytes);
  EXPECT_NE(log.find("GPU and card are on NUMA nodes 1 and 0"), std::string::npos) << log;
  SimulatedVerbs::SetMachine({});
  wish_ = VerbsDeviceMemory::kOff;
  EXPECT_EQ(Left(&log), 0u);
  EXPECT_NE(log.find("memory of GPUs by copies: ANNULUS_VERBS_DEVICE_MEMORY is off"), std::string::npos) << log;
}

TEST_F(VerbsGpuDistanceTest, WhoWantsItIsWarnedWhereItIsRefused) {
  SimulatedVerbs::SetMachine({.dma_buf_error = EOPNOTSUPP});
  wish_ = VerbsDeviceMemory::kOn;
  std::string log;
  EXPECT_EQ(Left(&log), 0u);
  EXPECT_NE(log.find("warning: some memory of GPUs goes through host memory"), std::string::npos) << log;
}

}  // namespace
}  // namespace annulus
