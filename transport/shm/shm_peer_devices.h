// ShmPeerDevices: allocations of the peer's devices, opened for a device of this process, which reads slices in them.
//
// Each allocation is opened for one device: the one that this rank works on when the peer has told of the allocation.
// What the CPU or another device is to read, the first one copies into the slot that the slice has taken along.
//
// What is opened stays until the peer forgets it and nothing of it is held, or until the object ends: by then no work
// of a device may read there any more.
//
// Threads: as the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/told_reasons.h"
#include "transport/memory/device_exports.h"
#include "transport/memory/device_sharing.h"
#include "transport/memory/retries.h"
#include "transport/memory/slot_memory.h"
#include "transport/shm/shm_format.h"

namespace annulus {

class ShmPeerDevices {
 public:
  // Sends the peer word of a region that it may name from now on. Returns false when there is no room now.
  using Answer = std::function<bool(uint64_t region)>;

  // `exports` outlives the object; null: nothing is opened. `memory` as TransportConfig::slot_memory. `slots`: those of
  // the link, which outlive it.
  ShmPeerDevices(const DeviceExports* exports, SlotMemory* memory, std::span<std::byte> slots, int peer, Answer answer);
  ~ShmPeerDevices();
  ShmPeerDevices(const ShmPeerDevices&) = delete;
  ShmPeerDevices& operator=(const ShmPeerDevices&) = delete;

  // Notices of the peer. They return false when what it says cannot be.
  bool OnShared(const ShmNotice& notice, const SharedDeviceMemory& shared);
  bool OnForgotten(uint64_t region);

  // Where a device of this process works (Recv::reader). Advance looks there.
  void NoteReader(const std::byte* reader) {
    if (owes_ && reader != nullptr) reader_ = reader;
  }
  // Opens what the peer has told of, and answers.
  void Advance() {
    if (owes_) [[unlikely]]
      Open();
  }

  // Returns the memory at `place`; null when it is not opened or not that large. Each success holds the region until
  // Release.
  const std::byte* Hold(const ShmPlace& place, uint32_t bytes);
  void Release(uint64_t region);
  // Whether the device that works on `reader` reads that region, which is held. Asks the driver.
  bool IsRead(uint64_t region, const std::byte* reader) const;

  // Begins to copy data of a held region to a slot. One copy at a time. Errors: those of DeviceSharing::CopyOut.
  Status BeginCopy(uint64_t region, const std::byte* data, uint32_t bytes, std::byte* slot);
  // Whether it is there; would_block: not yet. Errors: those of DeviceSharing::CheckCopies.
  Status CheckCopy();

 private:
  enum class State : uint8_t {
    kTold,      // By the peer.
    kOpened,    // Here, which the peer does not know yet.
    kAnswered,  // The peer does.
    kRefused,   // It could not be opened, which is tried again later.
  };
  struct Region {
    uint64_t id = 0;
    uint64_t bytes = 0;
    SharedDeviceMemory shared;
    State state = State::kTold;
    int device = -1;  // For which it is opened.
    const std::byte* begin = nullptr;
    uint32_t holds = 0;
    bool is_forgotten = false;
    Retries retries = {};
  };

  void Open();
  // Opens it for that device. Errors: those of DeviceSharing.
  Status OpenFor(int device, Region* region);
  Region* Find(uint64_t id);
  void Close(Region* region);

  const DeviceExports* const exports_;
  DeviceSharing* const sharing_;
  const std::span<std::byte> slots_;
  const int peer_;
  const Answer answer_;
  std::vector<Region> regions_;
  bool owes_ = false;  // Some region is not answered.
  const std::byte* reader_ = nullptr;
  ToldReasons told_;
  SlotBlock word_;  // Becomes 1 when the copy is there.
  struct {
    bool is_under_way = false;
    int device = -1;
    Deadline check = 0;  // When to ask whether the device still works.
  } copy_;
  bool has_opened_ = false;
};

}  // namespace annulus
