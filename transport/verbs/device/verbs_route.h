// Whether a port reaches another one, and how packets between them are addressed.
//
// RoCE: by the GID. InfiniBand: by the LID within a subnet; with a global header as well where the port wants one. To
// another subnet packets go to a router first, whose LID only the subnet manager knows. A routable GID names it: 10
// bits 1111111011, 22 bits 0, 16 bits LID that routers forward (FLID), 16 bits subnet, 64 bits port.
//
// Threads: plain functions and values.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "transport/verbs/device/verbs_device.h"

namespace annulus {

// A port as its peers know it.
struct VerbsRemotePort {
  bool ethernet = false;
  uint16_t lid = 0;
  uint16_t pkey = 0;
  std::array<uint8_t, 16> gid{};
};

// Fills in where packets go; the rest, such as the service level, is the caller's.
// Errors: kUnsupported when the port of `from` cannot reach it.
Status RouteTo(const VerbsDevice& from, const VerbsRemotePort& to, ibv_ah_attr* attributes);

// The GID of InfiniBand as it is in all ports of its subnet; what differs is 0.
std::array<uint8_t, 16> SubnetOf(std::array<uint8_t, 16> gid);

// "InfiniBand LID 7" or an address.
std::string RemotePortText(const VerbsRemotePort& port);

}  // namespace annulus
