// annulus_mem_alloc_device: memory of a GPU that ranks share, on the stand-in for CUDA's driver, each test in processes
// of its own, since a process looks for the driver once.
#include <string>

#include "cuda_kernels/kernel_image.h"
#include "tests/collectives/cuda/mapped_fold.h"

namespace annulus {
namespace {

constexpr size_t kCount = 30'011;
constexpr size_t kBytes = kCount * sizeof(float);

TEST(DeviceMemoryTest, ItIsZeroedSharedAndFreed) {
  if (cuda::KernelImage().empty()) GTEST_SKIP() << "this build has no kernels";
  OnProcesses(2, [](MappedRank* own) {
    void* memory = nullptr;
    ASSERT_EQ(annulus_mem_alloc_device(kBytes, 0, &memory), ANNULUS_OK) << LastMessage();
    auto* const data = static_cast<std::byte*>(memory);
    std::vector<float> zeros(kCount, 1);
    own->fake->Read(zeros.data(), data, kBytes);
    EXPECT_EQ(zeros, std::vector<float>(kCount, 0));
    const MappedRank::Work before = own->Done();
    own->Compare(FoldKind::kAllreduce, data, data, kCount);
    EXPECT_EQ(own->Done().launches - before.launches, 1);
    EXPECT_EQ(own->Done().copies - before.copies, 0);
    EXPECT_EQ(annulus_mem_free(memory), ANNULUS_OK);
    EXPECT_EQ(annulus_mem_free(memory), ANNULUS_INVALID_ARGUMENT) << "was freed before";
    // Host memory is told apart.
    ASSERT_EQ(annulus_mem_alloc(kBytes, &memory), ANNULUS_OK);
    EXPECT_EQ(annulus_mem_free(memory), ANNULUS_OK);
  });
}

TEST(DeviceMemoryTest, BeforeACommunicatorAndOnAnyGpu) {
  InProcesses(1, [](int) {
    MappedRank own({.devices = 2});
    for (int round = 0; round < 100; ++round) {
      void* memory = nullptr;
      ASSERT_EQ(annulus_mem_alloc_device(kBytes, 1, &memory), ANNULUS_OK) << LastMessage();
      EXPECT_EQ(own.fake->Counts().handles, 1);
      own.fake->Write(static_cast<std::byte*>(memory) + kBytes - 1, "x", 1);
      ASSERT_EQ(annulus_mem_free(memory), ANNULUS_OK);
    }
    EXPECT_EQ(own.fake->Counts().handles, 0);
    EXPECT_EQ(own.fake->Counts().ranges, 0);
    EXPECT_EQ(own.fake->Counts().streams, 0);
    EXPECT_EQ(own.fake->Violations(), std::vector<std::string>());
  });
}

void ExpectRefused(size_t bytes, int device, annulus_status_t status, const std::string& words) {
  void* memory = &memory;
  EXPECT_EQ(annulus_mem_alloc_device(bytes, device, &memory), status) << LastMessage();
  EXPECT_EQ(memory, nullptr);
  EXPECT_NE(LastMessage().find(words), std::string::npos) << LastMessage();
}

TEST(DeviceMemoryTest, WhatIsRefusedLeavesNothing) {
  InProcesses(1, [](int) {
    MappedRank own;
    EXPECT_EQ(annulus_mem_alloc_device(kBytes, 0, nullptr), ANNULUS_INVALID_ARGUMENT);
    ExpectRefused(0, 0, ANNULUS_INVALID_ARGUMENT, "bytes is 0");
    ExpectRefused(kBytes, 7, ANNULUS_SYSTEM_ERROR, "GPU 7");
    ExpectRefused(kBytes, -1, ANNULUS_SYSTEM_ERROR, "GPU -1");
    ExpectRefused(SIZE_MAX, 0, ANNULUS_OUT_OF_MEMORY, "more than there are addresses");
    for (const char* const function : {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
                                       "cuStreamCreateWithPriority", "cuMemsetD8Async"}) {
      own.fake->Fail(function, cuda::Result::kOutOfMemory, 0);
      ExpectRefused(kBytes, 0, ANNULUS_OUT_OF_MEMORY, function);
      EXPECT_EQ(own.fake->Counts().handles, 0) << function;
      EXPECT_EQ(own.fake->Counts().ranges, 0) << function;
      EXPECT_EQ(own.fake->Counts().streams, 0) << function;
    }
  });
}

TEST(DeviceMemoryTest, WithoutVirtualMemory) {
  InProcesses(1, [](int) {
    const MappedRank own({.maps_memory = false});
    ExpectRefused(kBytes, 0, ANNULUS_UNSUPPORTED, "no virtual memory API");
  });
  InProcesses(1, [](int) {
    const MappedRank own({.missing = "cuMemSetAccess"});
    ExpectRefused(kBytes, 0, ANNULUS_UNSUPPORTED, "no virtual memory API");
  });
}

TEST(DeviceMemoryTest, ADriverThatIsLoadedLaterIsFound) {
  InProcesses(1, [](int) {
    ExpectRefused(kBytes, 0, ANNULUS_UNSUPPORTED, "no CUDA driver");
    const MappedRank own;
    void* memory = nullptr;
    EXPECT_EQ(annulus_mem_alloc_device(kBytes, 0, &memory), ANNULUS_OK) << LastMessage();
    EXPECT_EQ(annulus_mem_free(memory), ANNULUS_OK);
  });
}

}  // namespace
}  // namespace annulus
