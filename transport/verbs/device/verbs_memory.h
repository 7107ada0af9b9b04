// Memory that is registered with the device. VerbsMemory: slots or cells that are allocated and registered with the
// device, once, for as long as they live.
//
// Threads: as the endpoint.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "transport/memory/slot_memory.h"
#include "transport/verbs/device/verbs_hub.h"

namespace annulus {

// Registers [data, data + bytes); `access` as of ibv_reg_mr. Errors: kOutOfMemory, kSystem; a limit on locked memory is
// named.
Status RegisterWithDevice(const VerbsHub& hub, std::byte* data, size_t bytes, int access, ibv_mr** region);

class VerbsMemory {
 public:
  ~VerbsMemory();
  VerbsMemory(VerbsHub* hub, SlotMemory* memory, size_t bytes)
      : hub_(hub), bytes_(bytes), block_(memory, bytes + kPage) {}
  VerbsMemory(const VerbsMemory&) = delete;
  VerbsMemory& operator=(const VerbsMemory&) = delete;

  // Registers it. `by_peer`: the peer may write to it. Errors: those of RegisterWithDevice.
  Status Register(bool by_peer);

  // Starts at a page, so that no page is registered twice.
  std::byte* data() const;
  size_t bytes() const { return bytes_; }
  ibv_mr* region() const { return region_; }

  // Memory that so many bytes take.
  static constexpr size_t Footprint(size_t bytes) { return bytes + kPage; }

 private:
  static constexpr size_t kPage = 4096;

  VerbsHub* const hub_;  // Outlives the memory.
  const size_t bytes_;
  SlotBlock block_;
  ibv_mr* region_ = nullptr;
};

}  // namespace annulus
