// CRC-32C (Castagnoli, as in RFC 3720), by ISA-L, which picks the processor's fastest code at run time.
//
// Threads: plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace annulus {

// Extends `crc`, the checksum of the preceding bytes (0 at the start), by `bytes`.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

inline uint32_t Crc32c(std::span<const std::byte> bytes) { return ExtendCrc32c(0, bytes); }

}  // namespace annulus
