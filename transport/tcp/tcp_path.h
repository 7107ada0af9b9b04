// How far away the other end of a connection is.
//
// Threads: a plain function.
#pragma once

#include <cstdint>
#include <optional>

namespace annulus {

// The smallest round trip time that the socket has seen, in microseconds; nothing when the kernel does not report it.
std::optional<uint32_t> LeastRoundTripUs(int fd);

}  // namespace annulus
