// MemoryDomains: the domain of a pointer, and slots that all devices can access, or none.
#include "collectives/reduce/memory_domains.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "transport/memory/slot_memory.h"

namespace annulus {
namespace {

// A device that owns one byte and counts the slots it was given.
class FakeDevice final : public MemoryDomain {
 public:
  FakeDevice() : MemoryDomain(MemoryKind::kDevice) {}

  bool Owns(const void* pointer) const override { return pointer == &memory || (owns_all && pointer != nullptr); }
  Status OpenQueue(ReduceOn, std::unique_ptr<DomainQueue>*) override { return Status(Code::kSystem); }
  std::byte* AllocateSlots(size_t bytes) override {
    ++allocated;
    return AllocateHostSlots(bytes);
  }
  void FreeSlots(std::byte* slots, size_t) override {
    --allocated;
    FreeHostSlots(slots);
  }
  Status RegisterSlots(std::byte*, size_t) override {
    if (refuses) return {Code::kOutOfMemory, "no more may be pinned"};
    ++registered;
    return Status();
  }
  void UnregisterSlots(std::byte*, size_t) override { --registered; }

  std::byte memory{};
  bool owns_all = false;
  bool refuses = false;
  int allocated = 0;
  int registered = 0;
};

class MemoryDomainsTest : public testing::Test {
 protected:
  MemoryDomainsTest() {
    domains_.Add(&first_);
    domains_.Add(&second_);
  }

  FakeDevice first_;
  FakeDevice second_;
  MemoryDomains domains_;
};

TEST_F(MemoryDomainsTest, TheFirstDeviceThatOwnsAPointerHasItElseTheHost) {
  EXPECT_EQ(domains_.Of(&first_.memory), &first_);
  EXPECT_EQ(domains_.Of(&second_.memory), &second_);
  EXPECT_EQ(domains_.Of(this)->kind(), MemoryKind::kHost);
  EXPECT_EQ(domains_.Of(nullptr)->kind(), MemoryKind::kHost);
  second_.owns_all = true;
  EXPECT_EQ(domains_.Of(&first_.memory), &first_);
  EXPECT_EQ(domains_.Of(this), &second_);
  domains_.Remove(&second_);
  EXPECT_EQ(domains_.Of(this)->kind(), MemoryKind::kHost);
}

TEST_F(MemoryDomainsTest, SlotsAreMadeByOneDeviceAndRegisteredWithTheOthers) {
  {
    const SlotBlock block(&domains_, 100);
    ASSERT_NE(block.data(), nullptr);
    EXPECT_EQ(first_.allocated, 1);
    EXPECT_EQ(first_.registered, 0);
    EXPECT_EQ(second_.registered, 1);
  }
  EXPECT_EQ(first_.allocated, 0);
  EXPECT_EQ(second_.registered, 0);
}

TEST_F(MemoryDomainsTest, SlotsThatOneDeviceRefusesAreNobodys) {
  second_.refuses = true;
  const SlotBlock block(&domains_, 100);
  EXPECT_EQ(block.data(), nullptr);
  EXPECT_EQ(first_.allocated, 0);
  std::vector<std::byte> slots(100);
  SlotRegistration registration;
  EXPECT_EQ(SlotRegistration::Make(&domains_, slots.data(), slots.size(), &registration).code(), Code::kOutOfMemory);
  EXPECT_EQ(first_.registered, 0);
  EXPECT_EQ(registration.memory(), nullptr);
}

TEST_F(MemoryDomainsTest, ARegistrationEndsOnceHoweverItIsMoved) {
  std::vector<std::byte> slots(100);
  {
    SlotRegistration first;
    ASSERT_TRUE(SlotRegistration::Make(&domains_, slots.data(), slots.size(), &first).ok());
    SlotRegistration second = std::move(first);
    first = std::move(second);
    EXPECT_EQ(first_.registered, 1);
    EXPECT_EQ(second_.registered, 1);
  }
  EXPECT_EQ(first_.registered, 0);
  EXPECT_EQ(second_.registered, 0);
}

TEST(HostDomainTest, TheHostAllocatesAlignedSlotsAndHasNoQueue) {
  MemoryDomains host;
  for (SlotMemory* const memory : {static_cast<SlotMemory*>(&host), static_cast<SlotMemory*>(nullptr)}) {
    for (const size_t bytes : {1, 64, 1000}) {
      const ZeroedSlotBlock block(memory, bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data()) % SlotMemory::kAlignment, 0u);
      EXPECT_EQ(block.bytes(), bytes);
      EXPECT_EQ(std::vector<std::byte>(block.data(), block.data() + bytes), std::vector<std::byte>(bytes));
    }
  }
  HostDomain domain;
  std::unique_ptr<DomainQueue> queue;
  ASSERT_TRUE(domain.OpenQueue(ReduceOn::kAuto, &queue).ok());
  EXPECT_EQ(queue, nullptr);
  EXPECT_EQ(KindOf(nullptr), MemoryKind::kHost);
}

}  // namespace
}  // namespace annulus
