// The memory of slots: where it lies in pages, huge ones among them, and what other devices hear of it.
#include "transport/verbs/device/verbs_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include "tests/verbs/provider/simulated_verbs.h"
#include "transport/memory/huge_pages.h"
#include "transport/memory/slot_memory.h"
#include "transport/reactor.h"
#include "transport/verbs/device/verbs_device.h"

namespace annulus {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kDefaultSlots = 8 * (256 * 1024 + 64);

uintptr_t AddressOf(const std::byte* data) { return reinterpret_cast<uintptr_t>(data); }

// The flags of the mapping that holds `data`, as proc(5) lists them; "" where the kernel does not tell.
std::string FlagsOf(const std::byte* data) {
  std::ifstream maps("/proc/self/smaps");
  bool is_there = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      is_there = begin <= AddressOf(data) && AddressOf(data) < end;
    } else if (is_there && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return "";
}

// Memory for slots that lies as badly as it may, and that counts.
class CountingMemory final : public SlotMemory {
 public:
  std::byte* AllocateSlots(size_t bytes) override {
    allocated = bytes;
    // Just behind the beginning of a page.
    block = AllocateHostSlots(bytes + 2 * kPageBytes);
    return block + kPageBytes - AddressOf(block) % kPageBytes + kAlignment;
  }
  void FreeSlots(std::byte*, size_t) override { FreeHostSlots(block); }
  Status RegisterSlots(std::byte* slots, size_t bytes) override {
    if (refuses) return {Code::kOutOfMemory, "no more may be pinned"};
    registered = slots;
    registered_bytes = bytes;
    return Status();
  }
  void UnregisterSlots(std::byte* slots, size_t bytes) override {
    EXPECT_EQ(slots, registered);
    EXPECT_EQ(bytes, registered_bytes);
    registered = nullptr;
  }

  size_t allocated = 0;
  std::byte* block = nullptr;
  std::byte* registered = nullptr;
  size_t registered_bytes = 0;
  bool refuses = false;
};

TEST(VerbsMemoryTest, SmallMemoryHasItsPagesForItself) {
  for (const size_t bytes : {size_t{1}, kPageBytes - 64, kPageBytes, kPageBytes + 1, kHugePageBytes - 1}) {
    CountingMemory from;
    const VerbsMemory memory(&from, bytes);
    EXPECT_EQ(from.allocated, VerbsMemory::Footprint(bytes));
    EXPECT_EQ(AddressOf(memory.data()) % kPageBytes, 0u);
    const std::byte* const begin = memory.data();
    const std::byte* const end = begin + (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    const size_t before = kPageBytes - AddressOf(from.block) % kPageBytes + SlotMemory::kAlignment;
    EXPECT_GE(begin, from.block + before);
    EXPECT_LE(end, from.block + before + from.allocated);
  }
}

TEST(VerbsMemoryTest, TheSlotsOfALinkLieOnHugePagesAndTakeNoMoreThanThePagesThatTheyFill) {
  CountingMemory from;
  const VerbsMemory memory(&from, kDefaultSlots);
  EXPECT_EQ(AddressOf(memory.data()) % kHugePageBytes, 0u);
  EXPECT_EQ(VerbsMemory::Footprint(kDefaultSlots), (kDefaultSlots + kPageBytes - 1) / kPageBytes * kPageBytes);
  EXPECT_EQ(from.registered, memory.data()) << "the devices of this process do not know it";
  EXPECT_EQ(from.registered_bytes, VerbsMemory::Footprint(kDefaultSlots));
  std::memset(memory.data(), 1, kDefaultSlots);
  if (access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK) != 0) GTEST_SKIP() << "no huge pages here";
  const std::string flags = FlagsOf(memory.data());
  if (flags.empty()) GTEST_SKIP() << "the kernel does not tell";
  EXPECT_NE(flags.find(" hg "), std::string::npos) << flags;
}

TEST(VerbsMemoryTest, LargeMemoryGoesWithItsRegistration) {
  CountingMemory from;
  auto memory = std::make_unique<VerbsMemory>(&from, kDefaultSlots);
  EXPECT_NE(from.registered, nullptr);
  memory.reset();
  EXPECT_EQ(from.registered, nullptr);
}

TEST(VerbsMemoryTest, ADeviceThatRefusesLargeMemoryRefusesTheLink) {
  std::unique_ptr<VerbsDevice> device;
  ASSERT_TRUE(VerbsDevice::Find(SimulatedVerbs::Api(), {}, &device).ok());
  Reactor reactor;
  const auto hub = std::make_shared<VerbsHub>(std::move(device), &reactor);
  ASSERT_TRUE(hub->Open(1).ok());
  CountingMemory from;
  from.refuses = true;
  VerbsMemory memory(&from, kDefaultSlots);
  ibv_mr* region = nullptr;
  const Status status = memory.Register(hub, true, &region);
  EXPECT_EQ(status.code(), Code::kOutOfMemory);
  EXPECT_EQ(status.message(), "no more may be pinned");
  from.refuses = false;
  VerbsMemory other(&from, kDefaultSlots);
  EXPECT_TRUE(other.Register(hub, true, &region).ok());
  EXPECT_EQ(region->addr, other.data());
}

}  // namespace
}  // namespace annulus
