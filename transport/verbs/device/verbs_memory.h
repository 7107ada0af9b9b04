// Memory that is registered with devices. VerbsMemory: slots or cells that are allocated and registered once with each
// device that uses them, for as long as they live.
//
// Threads: as the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "transport/memory/device_exports.h"
#include "transport/memory/huge_pages.h"
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
  // `memory` outlives it; null: plain host memory.
  VerbsMemory(SlotMemory* memory, size_t bytes);
  VerbsMemory(const VerbsMemory&) = delete;
  VerbsMemory& operator=(const VerbsMemory&) = delete;

  // Registers it with the device of `hub` for as long as it lives. `by_peer`: the peer may write to it.
  // Errors: those of RegisterWithDevice.
  Status Register(const std::shared_ptr<VerbsHub>& hub, bool by_peer, ibv_mr** region);

  // Starts at a page, and nothing else lies in its last one: pages that are registered may be missing in children
  // (verbs_fork.h), and none is registered twice. What fills a huge page starts at one.
  std::byte* data() const;
  size_t bytes() const { return bytes_; }

  // Memory that so many bytes take.
  static constexpr size_t Footprint(size_t bytes) { return WholePages(bytes) + (IsLarge(bytes) ? 0 : kPage); }

 private:
  struct Registration {
    std::shared_ptr<VerbsHub> hub;
    ibv_mr* region;
  };

  // Largest page that the kernel may have. A constant, since all ranks must need equally much.
#if defined(__x86_64__)
  static constexpr size_t kPage = 4096;
#else
  static constexpr size_t kPage = 64 * 1024;
#endif

  // Pages of its own, mapped here and registered with the devices of SlotMemory.
  struct Mapping {
    ~Mapping();

    std::byte* data = nullptr;
    size_t bytes = 0;
    Status status;  // How its registration went.
    SlotRegistration registration;
  };

  static constexpr size_t WholePages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
  static constexpr bool IsLarge(size_t bytes) { return bytes >= kHugePageBytes; }

  const size_t bytes_;
  // One of them has the memory: large memory is mapped, so that it lies on huge pages.
  Mapping mapping_;
  std::optional<SlotBlock> block_;
  std::vector<Registration> registrations_;  // One for each device.
};

}  // namespace annulus
