// How far away the other end of a connection is.
//
// Threads: a plain function.
#pragma once

#include <cstdint>
#include <optional>

namespace annulus {

// The least round trip that the socket has seen, in microseconds; nothing when the kernel does not tell.
std::optional<uint32_t> LeastRoundTripUs(int fd);

}  // namespace annulus
