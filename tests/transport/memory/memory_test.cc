// MemoryRegistry: memory that others may map keeps its address and content, and is what the registry says.
#include "transport/memory/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transport/memory/memory_pages.h"

namespace annulus {
namespace {

constexpr size_t kPage = 4096;

MemoryRegistry& Registry() {
  static MemoryRegistry registry;
  return registry;
}

// A private anonymous mapping, as malloc makes for large blocks.
class Private {
 public:
  explicit Private(size_t bytes, int access = PROT_READ | PROT_WRITE) : bytes_(bytes) {
    data_ = static_cast<std::byte*>(mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~Private() { munmap(data_, bytes_); }
  std::byte* data() const { return data_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

std::byte ByteAt(size_t i) { return static_cast<std::byte>(i * 31 + (i >> 8)); }
void Fill(std::byte* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) data[i] = ByteAt(i);
}
bool IsFilled(const std::byte* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    if (data[i] != ByteAt(i)) return false;
  }
  return true;
}

// The region that holds `data`; null when there is none.
std::shared_ptr<const MemoryRegion> RegionOf(const std::byte* data) {
  for (const auto& region : Registry().Regions()) {
    if (region->Contains(data, 1)) return region;
  }
  return nullptr;
}

// What another process would see of the region.
std::vector<std::byte> ThroughTheFile(const MemoryRegion& region) {
  void* other = mmap(nullptr, region.bytes, PROT_READ, MAP_SHARED, region.fd, 0);
  const std::byte* begin = static_cast<const std::byte*>(other);
  std::vector<std::byte> content(begin, begin + region.bytes);
  munmap(other, region.bytes);
  return content;
}

TEST(MemoryTest, AllocatedMemoryIsZeroAlignedSharedAndCounted) {
  for (const size_t bytes : {size_t{1}, kPage, kPage + 1, size_t{5} << 20}) {
    const size_t before = Registry().bytes();
    const uint64_t version = Registry().version();
    void* memory = nullptr;
    ASSERT_TRUE(Registry().Allocate(bytes, &memory).ok());
    std::byte* const data = static_cast<std::byte*>(memory);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % (bytes >= size_t{2} << 20 ? size_t{2} << 20 : kPage), 0u);
    EXPECT_TRUE(std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_EQ(Registry().bytes() - before, (bytes + kPage - 1) / kPage * kPage);
    EXPECT_NE(Registry().version(), version);
    const auto region = RegionOf(data + bytes - 1);
    ASSERT_NE(region, nullptr);
    Fill(data, bytes);
    EXPECT_TRUE(IsFilled(ThroughTheFile(*region).data(), bytes));
    EXPECT_TRUE(Registry().Free(memory).ok());
    EXPECT_EQ(Registry().bytes(), before);
    EXPECT_EQ(RegionOf(data), nullptr);
    // Given back at once, though the file is still open here.
    const std::vector<std::byte> left = ThroughTheFile(*region);
    EXPECT_TRUE(std::all_of(left.begin(), left.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(MemoryTest, RegisteredMemoryKeepsAddressAndContentAndIsShared) {
  const size_t bytes = 37 * 1024 * 1024 + 100;  // More than moves at once.
  Private memory(bytes);
  std::byte* const data = memory.data() + 24;
  const size_t used = bytes - 48;
  Fill(data, used);
  ASSERT_TRUE(Registry().Register(data, used).ok());
  EXPECT_TRUE(IsFilled(data, used));
  const auto region = RegionOf(data + kPage);
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(region->begin, memory.data() + kPage);
  EXPECT_EQ(region->begin + region->bytes, memory.data() + bytes / kPage * kPage);
  EXPECT_FALSE(region->Contains(data, 1));
  data[3 * kPage] = std::byte{0x77};
  EXPECT_EQ(ThroughTheFile(*region)[3 * kPage + 24 - kPage], std::byte{0x77});
  data[3 * kPage] = ByteAt(3 * kPage);
  ASSERT_TRUE(Registry().Deregister(data).ok());
  EXPECT_TRUE(IsFilled(data, used));
  EXPECT_EQ(RegionOf(data + kPage), nullptr);
  // Private again: it can be registered once more, and what is written reaches nobody.
  data[3 * kPage] = std::byte{0x78};
  EXPECT_EQ(ThroughTheFile(*region)[3 * kPage + 24 - kPage], std::byte{0});
  ASSERT_TRUE(Registry().Register(data, used).ok());
  ASSERT_TRUE(Registry().Deregister(data).ok());
}

TEST(MemoryTest, LargeBlocksOfMallocCanBeRegistered) {
  auto block = std::make_unique<std::byte[]>(8 << 20);
  Fill(block.get(), 8 << 20);
  ASSERT_TRUE(Registry().Register(block.get(), 8 << 20).ok());
  EXPECT_NE(RegionOf(block.get() + kPage), nullptr);
  ASSERT_TRUE(Registry().Deregister(block.get()).ok());
  EXPECT_TRUE(IsFilled(block.get(), 8 << 20));
}

TEST(MemoryTest, LessThanAPageIsAcceptedAndStaysPrivate) {
  std::byte local[64];
  const size_t before = Registry().bytes();
  ASSERT_TRUE(Registry().Register(local, sizeof(local)).ok());
  EXPECT_EQ(Registry().bytes(), before);
  EXPECT_TRUE(Registry().Deregister(local).ok());
}

TEST(MemoryTest, OtherMemoryIsRefusedAndNamed) {
  static std::byte in_the_image[4 * kPage];
  std::byte on_the_stack[4 * kPage];
  Private read_only(4 * kPage, PROT_READ);
  Private hole(8 * kPage);
  ASSERT_EQ(munmap(hole.data() + 2 * kPage, kPage), 0);
  void* shared = mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (void* memory : {static_cast<void*>(on_the_stack), static_cast<void*>(read_only.data()),
                       static_cast<void*>(hole.data()), shared}) {
    const Status status = Registry().Register(memory, 4 * kPage);
    EXPECT_EQ(status.code(), Code::kUnsupported) << status.ToString();
    EXPECT_NE(status.message().find("mem_register: the memory at 0x"), std::string::npos) << status.ToString();
  }
  // The program's own data may be mapped from its file or, where it is zero, not.
  const Status image = Registry().Register(in_the_image, sizeof(in_the_image));
  EXPECT_TRUE(image.code() == Code::kUnsupported || Registry().Deregister(in_the_image).ok()) << image.ToString();
  munmap(shared, 4 * kPage);
}

TEST(MemoryTest, WrongCallsAreRefused) {
  const auto refused = [](const Status& status, const char* part) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.ToString();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
  };
  void* memory = nullptr;
  refused(Registry().Allocate(0, &memory), "0 bytes");
  refused(Registry().Allocate(1, nullptr), "null");
  EXPECT_EQ(Registry().Allocate(SIZE_MAX - 5, &memory).code(), Code::kOutOfMemory);
  EXPECT_EQ(Registry().Allocate(SIZE_MAX / 2, &memory).code(), Code::kOutOfMemory);
  refused(Registry().Register(nullptr, 5), "null");
  refused(Registry().Free(nullptr), "is not what mem_alloc returned");
  refused(Registry().Deregister(nullptr), "is not registered");
  ASSERT_TRUE(Registry().Allocate(3 * kPage, &memory).ok());
  std::byte* const data = static_cast<std::byte*>(memory);
  refused(Registry().Register(data, 0), "0 bytes");
  refused(Registry().Register(data, SIZE_MAX), "beyond all addresses");
  refused(Registry().Register(data + kPage, 5), "overlap");
  refused(Registry().Deregister(data), "is not registered");
  refused(Registry().Free(data + kPage), "is not what mem_alloc returned");
  ASSERT_TRUE(Registry().Free(memory).ok());
  refused(Registry().Free(memory), "is not what mem_alloc returned");
}

TEST(MemoryTest, WhatAForkedChildFreesStaysTheParents) {
  void* allocated = nullptr;
  ASSERT_TRUE(Registry().Allocate(4 * kPage, &allocated).ok());
  Private memory(4 * kPage);
  Fill(memory.data(), 4 * kPage);
  Fill(static_cast<std::byte*>(allocated), 4 * kPage);
  ASSERT_TRUE(Registry().Register(memory.data(), 4 * kPage).ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool fine = Registry().Free(allocated).ok() && Registry().Deregister(memory.data()).ok() &&
                      IsFilled(memory.data(), 4 * kPage);
    _exit(fine ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(IsFilled(static_cast<std::byte*>(allocated), 4 * kPage));
  EXPECT_TRUE(IsFilled(memory.data(), 4 * kPage));
  EXPECT_TRUE(Registry().Free(allocated).ok());
  EXPECT_TRUE(Registry().Deregister(memory.data()).ok());
}

TEST(MemoryTest, ThreadsMayComeAndGo) {
  const size_t before = Registry().bytes();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 50; ++i) {
        void* memory = nullptr;
        ASSERT_TRUE(Registry().Allocate(kPage * (1 + i % 3), &memory).ok());
        EXPECT_NE(RegionOf(static_cast<std::byte*>(memory)), nullptr);
        ASSERT_TRUE(Registry().Free(memory).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Registry().bytes(), before);
}

}  // namespace
}  // namespace annulus
