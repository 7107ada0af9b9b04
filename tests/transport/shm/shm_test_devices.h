// TestDevices: devices for tests of links through shared memory, and memory that they share.
//
// Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transport/memory/device_exports.h"
#include "transport/memory/device_sharing.h"
#include "transport/memory/slot_memory.h"

namespace annulus {

// Devices whose memory is host memory. What is read of it by the wrong one is not there: each sees the others' memory
// at addresses of its own.
class TestDevices final : public SlotMemory, public DeviceExports, public DeviceSharing {
 public:
  static constexpr size_t kBytes = 512 * 1024;  // Of each allocation.

  struct Allocation {
    DeviceRange range;
    std::vector<std::byte> memory;
  };

  // Memory of a device; a new one may come where another was.
  std::byte* Make(int device, std::byte* at = nullptr) {
    Allocation& made = allocations_.emplace_back();
    made.memory.resize(kBytes);
    made.range = {++last_id_, at != nullptr ? at : made.memory.data(), kBytes, device};
    return made.range.begin;
  }
  void Free(const std::byte* begin) {
    const auto found = std::ranges::find_if(allocations_, [=](const Allocation& a) { return a.range.begin == begin; });
    freed_.splice(freed_.end(), allocations_, found);
  }

  std::byte* AllocateSlots(size_t bytes) override { return AllocateHostSlots(bytes); }
  void FreeSlots(std::byte* slots, size_t) override { FreeHostSlots(slots); }
  Status RegisterSlots(std::byte*, size_t) override { return Status(); }
  void UnregisterSlots(std::byte*, size_t) override {}
  const DeviceExports* exports() const override { return this; }

  std::string missing() const override { return ""; }
  bool RangeOf(const std::byte* data, size_t bytes, DeviceRange* range) const override {
    for (const Allocation& each : allocations_) {
      if (data < each.range.begin || data + bytes > each.range.begin + each.range.bytes) continue;
      *range = each.range;
      return true;
    }
    return false;
  }
  Status Export(const DeviceRange&, int*, uint64_t*) const override { return Status(Code::kUnsupported); }
  std::string PciAddress(int) const override { return ""; }
  int CurrentDevice() const override { return -1; }
  std::string Name(int) const override { return ""; }
  DeviceReach ReachOf(int, const std::string&) const override { return DeviceReach::kUnknown; }
  DeviceWrites WritesTo(int) const override { return DeviceWrites::kHidden; }
  Status FlushWrites(int) const override { return Status(); }
  Status CopyOut(int, const std::byte*, size_t, std::byte*, uint32_t*) const override {
    return Status(Code::kUnsupported);
  }
  Status CheckCopies(int) const override { return Status(); }
  void AwaitCopies(int) const override {}
  void TellWay(const void*, const std::string&) const override {}
  DeviceSharing* sharing() const override { return shares ? const_cast<TestDevices*>(this) : nullptr; }

  Status Describe(const DeviceRange& range, SharedDeviceMemory* shared) override {
    if (stays) return {Code::kUnsupported, "it stays"};
    ++describes;
    std::memcpy(shared->bytes.data(), &range.id, sizeof range.id);
    return Status();
  }
  uint64_t described() const override { return describes; }
  Status Open(int device, const SharedDeviceMemory& shared, size_t bytes, const std::byte** begin) override {
    if (refuses) return {Code::kUnsupported, "it does not reach it"};
    uint64_t id = 0;
    std::memcpy(&id, shared.bytes.data(), sizeof id);
    const auto found = std::ranges::find_if(allocations_, [=](const Allocation& a) { return a.range.id == id; });
    if (found == allocations_.end() || bytes != kBytes) return Status::Invalid("no such allocation");
    *begin = found->memory.data();
    opened.push_back({device, *begin});
    return Status();
  }
  void Close(int device, const std::byte* begin) override {
    const auto found = std::ranges::find(opened, std::pair{device, begin});
    ASSERT_NE(found, opened.end());
    opened.erase(found);
  }
  Status CheckSlots(int, const std::byte*, size_t) override {
    return pins ? Status() : Status(Code::kUnsupported, "not pinned");
  }

  Status CopyOut(int device, const std::byte* data, size_t bytes, std::byte* slots, uint32_t* done) override {
    EXPECT_TRUE(IsOpen(device, data, bytes)) << "what is not opened is copied";
    if (fails_to_copy) return {Code::kSystem, "no copy"};
    const auto copy = [=] {
      std::memcpy(slots, data, bytes);
      __atomic_store_n(done, 1, __ATOMIC_RELEASE);
    };
    holds ? held.push_back(copy) : copy();
    ++copies;
    return Status();
  }
  Status CheckCopies(int) override { return fails_later ? Status(Code::kSystem, "lost") : Status(); }
  void AwaitCopies(int) override {
    for (const auto& copy : held) copy();
    held.clear();
  }

  bool IsOpen(int device, const std::byte* data, size_t bytes) const {
    return std::ranges::any_of(opened, [=](const auto& each) {
      return each.first == device && data >= each.second && data + bytes <= each.second + kBytes;
    });
  }

  bool shares = true;
  bool stays = false;
  bool refuses = false;
  bool pins = true;
  bool holds = false;
  bool fails_to_copy = false;
  bool fails_later = false;
  int copies = 0;
  uint64_t describes = 0;
  std::vector<std::function<void()>> held;
  std::vector<std::pair<int, const std::byte*>> opened;

 private:
  std::list<Allocation> allocations_;
  std::list<Allocation> freed_;  // Its memory stays.
  uint64_t last_id_ = 0;
};

}  // namespace annulus
