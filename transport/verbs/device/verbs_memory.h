// Memory that is registered with devices. VerbsMemory: slots or cells that are allocated and registered once with each
// device that uses them, for as long as they live.
//
// Threads: as the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/memory/device_exports.h"
#include "transport/memory/slot_memory.h"
#include "transport/verbs/device/verbs_hub.h"

namespace annulus {

// Registers [data, data + bytes); `access` as of ibv_reg_mr. Errors: kOutOfMemory, kSystem; a limit on locked memory is
// named.
Status RegisterWithDevice(const VerbsHub& hub, std::byte* data, size_t bytes, int access, ibv_mr** region);

// The same for memory of a device that lies at `offset` of the dma-buf `fd`; requests name it by its addresses from
// `begin` on. Errors: those, and kUnsupported when the card or its driver takes no dma-bufs.
Status RegisterDeviceMemory(const VerbsHub& hub, const DeviceRange& range, int fd, uint64_t offset, int access,
                            ibv_mr** region);

class VerbsMemory {
 public:
  ~VerbsMemory();
  VerbsMemory(SlotMemory* memory, size_t bytes) : bytes_(bytes), block_(memory, bytes + kPage) {}
  VerbsMemory(const VerbsMemory&) = delete;
  VerbsMemory& operator=(const VerbsMemory&) = delete;

  // Registers it with the device of `hub` for as long as it lives. `by_peer`: the peer may write to it.
  // Errors: those of RegisterWithDevice.
  Status Register(const std::shared_ptr<VerbsHub>& hub, bool by_peer, ibv_mr** region);

  // Starts at a page, so that no page is registered twice.
  std::byte* data() const;
  size_t bytes() const { return bytes_; }

  // Memory that so many bytes take.
  static constexpr size_t Footprint(size_t bytes) { return bytes + kPage; }

 private:
  struct Registration {
    std::shared_ptr<VerbsHub> hub;
    ibv_mr* region;
  };

  static constexpr size_t kPage = 4096;

  const size_t bytes_;
  SlotBlock block_;
  std::vector<Registration> registrations_;  // One for each device.
};

}  // namespace annulus
