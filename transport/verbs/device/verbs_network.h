// The networks of a rank's ports, as a text that ranks tell each other: ports with the same one reach each other.
//
// Threads: plain functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/verbs/device/verbs_device.h"

namespace annulus {

// Most ports of a rank.
inline constexpr size_t kMostVerbsPorts = 8;

// "RoCE 10.0.0.0/24" or "InfiniBand fe80::/64 partition 5". RoCE v2 could be routed to other subnets too, but nobody
// here knows that. A link-local address, and one that no interface has, is a network of its own.
std::string VerbsNetwork(const VerbsDevice& device);

// The first `bits` of an address as a network: "10.0.0.0/24". Those of IPv4 count from its own beginning.
std::string NetworkText(std::array<uint8_t, 16> gid, int bits);

// Those of several ports: "RoCE 10.0.0.0/24, RoCE 10.0.1.0/24". Longer texts than this do not fit into an address.
std::string NetworksText(std::span<const std::unique_ptr<VerbsDevice>> ports);
inline constexpr size_t kLongestNetworks = 200;

// An address that ranks tell each other: where the rank listens, a space, and the networks of its ports.
std::string VerbsAddress(const std::string& endpoint, std::span<const std::unique_ptr<VerbsDevice>> ports);
std::string_view EndpointOf(std::string_view address);
// "" when they are none.
std::string_view NetworksOf(std::string_view address);

// Which ports of two ranks reach each other: pairs of places in the lists of the first rank and of the second. Each
// port is in one pair at most, and is paired with the first that is left in the same network. If there is no such pair
// the first ports are, since RoCE may be routed. Both ends find the same when both take the rank with the lower number
// for the first.
std::vector<std::pair<size_t, size_t>> PairPorts(std::string_view first, std::string_view second);

}  // namespace annulus
