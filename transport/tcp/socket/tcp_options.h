// Options of the sockets of TCP links, and lookup of the interface that an address belongs to.
//
// Threads: plain functions.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "transport/address.h"

namespace annulus {

// Prepares a connected socket for a link. `same_host`: both ends are on this host, whatever addresses they use.
// Errors: kSystem.
Status TuneSocket(int fd, bool same_host);

// The congestion control algorithm of the socket.
std::string CongestionControlOf(int fd);

// The number of packets that the socket has sent again; `otherwise` when the kernel does not report it.
uint64_t RetransmitsOf(int fd, uint64_t otherwise);

// The name of the interface that has the address of `endpoint`; "" when none has it.
std::string InterfaceOf(const StreamEndpoint& endpoint);

// Finds an address of the interface, with port 0. It is of the same family as `like`, if `like` has an address and the
// interface has one of that family.
// Errors: kUnsupported  there is no such interface, or it has no usable address.
Status AddressOfInterface(const std::string& name, const StreamEndpoint& like, StreamEndpoint* address);

}  // namespace annulus
