// ShmOwnDevices: allocations of this process's devices that a link lets the peer's device read in place.
//
// The first slice in an allocation tells the peer of it, and goes through a slot. Slices stay in place once the peer
// has answered that a device of its own finds the allocation. So no slice waits for the peer's driver, and a peer that
// cannot open an allocation does not answer.
//
// An allocation is known by the number that the driver gives it, for which it is asked with each slice: another one may
// have come to the same address. What was freed is forgotten when another one is told of.
//
// Threads: as the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "transport/memory/device_exports.h"
#include "transport/memory/device_sharing.h"
#include "transport/shm/shm_format.h"

namespace annulus {

// Most allocations of one end that the other knows. What lies in others is sent through slots.
constexpr size_t kShmMostDeviceRegions = 256;

class ShmOwnDevices {
 public:
  // Sends a notice, with an allocation's description or null. Returns false when there is no room now.
  using SendNotice = std::function<bool(const ShmNotice& notice, const SharedDeviceMemory* shared)>;

  // `exports` outlives the object; null: nothing is read in place.
  ShmOwnDevices(const DeviceExports* exports, SendNotice send)
      : exports_(exports), sharing_(exports != nullptr ? exports->sharing() : nullptr), send_(std::move(send)) {}

  bool is_on() const { return sharing_ != nullptr; }

  // Whether the peer's device reads [data, data + bytes) in place. Tells the peer of the allocation if it does not know
  // it yet.
  bool Find(const std::byte* data, size_t bytes, ShmPlace* place);

  // Withdraws what was freed, when this process has described something new, to whatever peer.
  void Advance() {
    if (known_.empty() && to_forget_.empty()) [[likely]]
      return;
    if (described_ != sharing_->described() || !to_forget_.empty()) ForgetFreed();
  }

  // The peer has opened a region. Returns false when it was never told of it.
  bool OnOpened(uint64_t region);

 private:
  enum class State : uint8_t {
    kUntold,
    kTold,
    kOpened,
    kStays,  // Other processes cannot reach it.
  };
  struct Known {
    DeviceRange range;
    uint64_t region = 0;
    State state = State::kUntold;
    SharedDeviceMemory shared;
  };

  Known* Learn(const DeviceRange& range);
  void ForgetFreed();

  const DeviceExports* const exports_;
  DeviceSharing* const sharing_;
  const SendNotice send_;
  std::vector<Known> known_;
  std::vector<uint64_t> to_forget_;  // Regions that are still to be withdrawn at the peer.
  uint64_t last_ = 0;                // Number of the latest region.
  uint64_t described_ = 0;           // DeviceSharing::described when it was last looked for freed ones.
};

}  // namespace annulus
