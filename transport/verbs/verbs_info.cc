// The verbs transport's description of itself.
//
// Threads: constants and plain functions.
#include <algorithm>

#include "transport/reconnect.h"
#include "transport/verbs/device/verbs_network.h"
#include "transport/verbs/device/verbs_ports.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_endpoint.h"
#include "transport/verbs/verbs_settings.h"

namespace annulus {
namespace {

// Not measured: no RDMA card was at hand, and soft-RoCE says nothing of one. These are round figures for a card of 100
// Gbit/s: 12.5 GB/s, and some microseconds for a message from one program to another. `annulus-perf` or
// ANNULUS_TUNING=measure replaces them.
constexpr LinkCosts kCard = {
    .latency_s = 2e-6, .byte_s = 8e-11, .message_s = 0.5e-6, .reduce_byte_s = 2e-11, .move_byte_s = 1e-10};

LinkCosts Costs(const LinkPlace&) { return kCard; }

size_t PortsOf(const TransportSettings& settings) { return MostPorts(settings.Text("verbs_device")); }

size_t LinkMemoryBytes(const TransportConfig& config) {
  const bool continues = config.continues && ReconnectMs(config.settings.Number("reconnect_ms"), false) > 0;
  const size_t rails = PortsOf(config.settings);
  return VerbsEndpoint::MemoryBytes(std::min(config.slots, kMostVerbsSlots), config.slot_bytes, rails, continues);
}

}  // namespace

constinit const TransportInfo kVerbsTransport = {
    .name = kVerbsName,
    .title = "verbs",
    .same_host_only = false,
    .needs_device = true,
    .in_clear = true,
    .by_system_calls = false,
    .hello_purpose = 5,
    .networks = NetworksOf,
    .cost_settings = {},
    .costs = Costs,
    .link_memory = LinkMemoryBytes,
    .create = CreateVerbsTransport,
    .most_ports = PortsOf,
    .ports_setting = "verbs_device",
    .continuable = true,
};

}  // namespace annulus
