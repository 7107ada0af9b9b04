// CRC-32C (Castagnoli, as in RFC 3720), by ISA-L, which picks the processor's fastest code at run time.
//
// Threads: plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace annulus {

// Continues `crc`, the checksum of what came before (0 at the start), over `bytes`.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

inline uint32_t Crc32c(std::span<const std::byte> bytes) { return ExtendCrc32c(0, bytes); }

}  // namespace annulus
