// The shared memory transport's description of itself.
//
// Threads: constants and plain functions.
#include <cstddef>

#include "transport/shm/shm.h"
#include "transport/shm/shm_mapping.h"
#include "transport/shm/shm_settings.h"

namespace annulus {
namespace {

// Measured by `annulus-perf` with ANNULUS_ALGORITHM set to each in turn, 8 B to 64 KiB, on the machine of
// docs/benchmarks/2026-11-22-peers.md; docs/decisions/0027-choice.md has the figures. The cores do all the work.
constexpr LinkCosts kCosts = {
    .latency_s = 0.13e-6, .byte_s = 0, .message_s = 0.13e-6, .reduce_byte_s = 2e-11, .move_byte_s = 2.5e-11};
// Time per message where ranks share cores, in seconds; it includes a switch to the receiver.
constexpr double kSharedCoreMessage = 0.7e-6;

LinkCosts Costs(const LinkPlace& place) {
  LinkCosts costs = kCosts;
  if (place.ranks_per_core > 1) costs.message_s = kSharedCoreMessage;
  return costs;
}

// One end's slots, and the greater part of the rings, which are split unequally between the ends. A receiver's cell for
// small slices is no larger than a descriptor.
size_t LinkMemoryBytes(const TransportConfig& config) {
  const ShmLayout layout = ShmLayout::For(static_cast<uint32_t>(config.slots), config.slot_bytes);
  const size_t half = (layout.rings_end - layout.ring_offset[0]) / 2;
  return layout.slots * (layout.slot_stride + sizeof(ShmDescriptor)) + layout.rings_end - half;
}

}  // namespace

constinit const TransportInfo kShmTransport = {
    .name = kShmName,
    .title = "shared memory",
    .same_host_only = true,
    .needs_device = false,
    .in_clear = false,
    .by_system_calls = false,
    .hello_purpose = 3,
    .networks = nullptr,
    .cost_settings = {},
    .costs = Costs,
    .link_memory = LinkMemoryBytes,
    .create = CreateShmTransport,
};

}  // namespace annulus
