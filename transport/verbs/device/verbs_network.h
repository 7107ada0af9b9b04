// The network of a device's port, as a text that its ranks tell each other: devices with the same one reach each other.
//
// Threads: plain functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "transport/verbs/device/verbs_device.h"

namespace annulus {

// "RoCE 10.0.0.0/24" or "InfiniBand fe80::/64 partition 5". RoCE v2 could be routed to other subnets too, but nobody
// here knows that. A link-local address, and one that no interface has, is a network of its own.
std::string VerbsNetwork(const VerbsDevice& device);

// The first `bits` of an address as a network: "10.0.0.0/24". Those of IPv4 count from its own beginning.
std::string NetworkText(std::array<uint8_t, 16> gid, int bits);

// An address that ranks tell each other: where the rank listens, a space, and its network.
std::string VerbsAddress(const std::string& endpoint, const VerbsDevice& device);
std::string_view EndpointOf(std::string_view address);
std::string_view NetworkOf(std::string_view address);

}  // namespace annulus
